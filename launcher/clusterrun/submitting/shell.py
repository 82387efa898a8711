"""Lines of a shell script, as a person writes them and shellcheck likes them."""

import re
from collections.abc import Iterable, Sequence

WIDTH = 98
"""Of a line; a longer command is continued."""

_SAFE = re.compile(r"[\w@%+=:,./-]+")


def quoted(word: str) -> str:
    """Return ``word`` as one word of a shell, which expands nothing in it."""
    if _SAFE.fullmatch(word):
        return word
    if re.search(r"['$`\\]", word):
        # In single quotes, shellcheck takes a $ or a \ for a mistake.
        return '"' + re.sub(r'(["\\$`])', r"\\\1", word) + '"'
    return f"'{word}'"


def command_lines(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return a command of words that are quoted already, with line breaks between ``groups`` only."""
    first, *others = (" ".join(group) for group in groups)
    lines = [first]
    for text in others:
        if len(lines[-1]) + len(text) > WIDTH:
            lines.append(f"    {text}")
        else:
            lines[-1] += f" {text}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def clock(seconds: int) -> str:
    """Return a time limit as ``36:00:00``."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def memory(mib: int) -> str:
    """Return a size in the largest unit that it is a whole number of: ``64G``, ``500M``."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"
