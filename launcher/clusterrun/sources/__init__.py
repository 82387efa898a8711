"""Where a job is described: flags, variables and files become a Job, every value with its origin.

Functions of this room raise ``UsageError`` for a wrong value; its message names the flag, variable or
line that set the value.
"""
