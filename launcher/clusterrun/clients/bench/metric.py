"""The throughput that a script prints: by a user's pattern, or in a common form. Pure."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isfinite

_NO_COUNTER = r"(?<![\d.,_])(?<!epoch )(?<!step )(?<!iter )(?<!iteration )(?<!batch )(?<!rank )"
"""Before a number: "step 10 tokens/s: 512" is about 512."""
_NO_LABEL = r"(?![\"']?\s*[:=]\s*\d)"
"""After a unit: the number follows it."""
_NUMBER = r"(?P<number>\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_PER_SECOND = r"(?:\s*/\s*|[ _]per[ _])(?:seconds?|secs?|s)\b"
_WORK = r"(?P<unit>samples?|examples?|images?|imgs?|frames?|tokens?|toks?|sequences?|seqs?)"
_STEPS = r"(?P<unit>steps?|iterations?|iters?|its?|batch(?:es)?)"

COMMON = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NO_COUNTER}{_NUMBER} ?(?P<factor>[kM]?) ?{_WORK}{_PER_SECOND}{_NO_LABEL}",
        rf"{_WORK}{_PER_SECOND}[\"']?\s*[:=]?\s*{_NUMBER}",
        rf"(?P<unit>throughput)(?:[^\d\n]{{0,24}}[:=])?\s*{_NUMBER}",
        rf"{_NO_COUNTER}{_NUMBER} ?(?P<factor>[kM]?) ?{_STEPS}{_PER_SECOND}{_NO_LABEL}",
        rf"{_STEPS}{_PER_SECOND}[\"']?\s*[:=]?\s*{_NUMBER}",
        rf"(?P<seconds>\d+(?:\.\d+)?) ?(?:s|sec|seconds?) ?(?:/|per) ?{_STEPS}\b",
    )
)
"""``512 images/s``, ``'train_samples_per_second': 81.2``, ``throughput: 9``, ``12.5it/s``,
``2.1s/it``. Those of work come first: a step of more ranks may do more work."""

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6}

_RANK = re.compile(r"\[rank (\d+)[^\]]*\] ?")
"""The prefix of a line; a single worker's lines have none."""


def find_pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Return the first common form that one of the outputs has; None if none has any."""
    return next((each for each in COMMON if any(map(each.search, texts))), None)


def values_in(text: str, pattern: re.Pattern[str]) -> list[float]:
    """Return the throughput in one run's output, in its order.

    Where several ranks print it, the lowest counts: each prints that of the whole job, or its own.
    """
    by_rank: dict[int, list[float]] = {}
    for line in re.split(r"[\n\r]", text):
        prefix = _RANK.match(line)
        rank = int(prefix[1]) if prefix else 0
        for found in pattern.finditer(line, prefix.end() if prefix else 0):
            own = _values_of(found) if pattern in COMMON else _number(found[1], "")
            by_rank.setdefault(rank, []).extend(own)
    return by_rank[min(by_rank)] if by_rank else []


def unit_in(texts: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return what is counted: ``images/s``; ``per second`` if the pattern does not tell."""
    for text in texts:
        if found := pattern.search(text):
            unit = found.groupdict().get("unit") or ""
            return f"{unit}/s" if unit and unit.lower() != "throughput" else "per second"
    return "per second"


def without_warm_up(values: Sequence[float], warm_up: int | None) -> tuple[float, ...]:
    """Return the values after the first ``warm_up``; at least the last one.

    None: a fifth of them, at least one if there are two or more.
    """
    first = max(1, len(values) // 5) if warm_up is None else warm_up
    return tuple(values[min(first, len(values) - 1) :]) if values else ()


def _values_of(found: re.Match[str]) -> Iterator[float]:
    groups = found.groupdict()
    if seconds := groups.get("seconds"):
        if float(seconds) > 0:
            yield 1 / float(seconds)
        return
    yield from _number(groups["number"], groups.get("factor") or "")


def _number(text: str | None, factor: str) -> Iterator[float]:
    # A user's group may be in a branch that did not match, or match what is no number.
    with suppress(ValueError):
        number = float((text or "").replace(",", "").replace("_", "")) * _FACTORS[factor.lower()]
        if isfinite(number):
            yield number
