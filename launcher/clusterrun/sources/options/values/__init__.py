"""From text to value: one function for each kind of value, which raises ``UsageError``.

The messages fit a flag, a variable and a key of a job file alike; ``Option.read`` adds which it was.
"""
