"""Times and numbers of bytes in words."""

from clusterrun.domain.counts import counted

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(seconds: float) -> str:
    """Return "7 s", "1:02" (minutes), "3:01:02" or "2 days 3:01:02"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    days, hours = divmod(hours, 24)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    if not days and not hours:
        return clock.lstrip("0")
    return f"{counted(days, 'day')} {hours}:{clock}" if days else f"{hours}:{clock}"


def size(count: float) -> str:
    """Return a number of bytes as "512 B", "1.5 GiB", "12 GiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if count >= 10 else f"{count:.1f} {_UNITS[unit]}"
