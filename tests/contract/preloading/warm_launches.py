"""Launches with ``--keep-warm`` of a program that prints which process has imported for it."""

import re
from collections.abc import Mapping

from tests.contract.launched import Ended, Job, Launcher

WARM = "workers start from the warm fork server"
REPLACED = re.compile(r"the warm fork server was replaced: (.*) changed\n")

ALWAYS = ("--keep-warm", "100", "--start-method", "fork", "--preload", "slow_module", "-v")


def launch(
    warm: Launcher,
    *options: str,
    program: str = "program.py",
    args: tuple[str, ...] = (),
    around: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Launch a program, which must succeed; ``around`` changes what it inherits."""
    words = (*ALWAYS, *options, program, *args)
    ended = outlived(warm.command(*words, workers=2, around=around, environ=environ))
    assert ended.code == 0, ended.err
    return ended


def outlived(job: Job) -> Ended:
    """Return how a job ended whose server may stay: that is not left behind."""
    ended = job.ended()
    job.is_over = False
    return ended


def importers(ended: Ended) -> set[str]:
    found = re.findall(r"imported by (\d+)", ended.out)
    assert len(found) == 2, ended
    return set(found)
