"""Read signals."""

import signal

from clusterrun.domain.signal_names import FORWARDED_SIGNALS
from clusterrun.errors import UsageError
from clusterrun.sources.options.values.numbers import whole_number


def suspend_signal(text: str) -> int:
    """Read the name or number of a signal that has no other meaning for an agent."""
    names = {each.name: int(each) for each in signal.Signals}
    name = text.strip().upper()
    number = names.get(name) or names.get(f"SIG{name}") or whole_number(text)
    if number is None or number not in FORWARDED_SIGNALS:
        raise UsageError(
            f"{text!r} is not a signal that can ask for a suspension", "give USR1 or USR2"
        )
    return number
