"""One report of a job, from those of its nodes: each has the cause, and its own workers only. Pure."""

import re
from collections.abc import Iterable, Mapping

from clusterrun.domain.cpuset import runs

_RANKS = re.compile(r"  ranks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*): (.+)")
"""A line for workers that ended in the same way, as ``report.worker_endings`` writes it."""

_SURVIVOR = "  SIGKILL did not end "
"""How a line of ``report.outcome`` about a process that is left begins."""


def one_report(reports: Mapping[str, str]) -> str:
    """Return the first of ``reports``, which are by host, with the workers of all.

    Returns:
        Lines without a trailing newline; "" if there are no reports.

    """
    first, *_ = (*filter(None, reports.values()), "")
    lines = first.rstrip("\n").splitlines()
    kept = [line for line in lines if not _RANKS.fullmatch(line) and not line.startswith(_SURVIVOR)]
    before = next((at for at, line in enumerate(lines) if _RANKS.fullmatch(line)), len(kept) - 1)
    added = [*_all_ranks(reports.values()), *_survivors(reports)]
    return "\n".join([*kept[:before], *added, *kept[before:]]) if lines else ""


def _all_ranks(reports: Iterable[str]) -> list[str]:
    groups: dict[str, set[int]] = {}
    for report in reports:
        for line in report.splitlines():
            if found := _RANKS.fullmatch(line):
                groups.setdefault(found[2], set()).update(_numbers(found[1]))
    return [
        f"  rank{'s' if len(ranks) > 1 else ''} {', '.join(runs(ranks))}: {role}"
        for role, ranks in groups.items()
    ]


def _numbers(text: str) -> Iterable[int]:
    for part in text.split(", "):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def _survivors(reports: Mapping[str, str]) -> list[str]:
    return [
        f"{line} on {host}"
        for host, report in reports.items()
        for line in report.splitlines()
        if line.startswith(_SURVIVOR)
    ]
