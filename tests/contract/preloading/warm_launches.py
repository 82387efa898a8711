"""Launches with ``--keep-warm`` of a program that prints which process has imported for it."""

import re

from tests.contract.launched import Ended, Launcher

WARM = "workers start from the warm fork server"
REPLACED = re.compile(r"the warm fork server was replaced: (.*) changed\n")

ALWAYS = ("--keep-warm", "100", "--start-method", "fork", "--preload", "slow_module", "-v")


def launch(warm: Launcher, *options: str, args: tuple[str, ...] = (), **more: str) -> Ended:
    words = (*ALWAYS, *options, "program.py", *args)
    job = warm.command(*words, workers=2, environ=more)
    ended = job.ended()
    # The server that stays is not left behind.
    job.is_over = False
    assert ended.code == 0, ended.err
    return ended


def importers(ended: Ended) -> set[str]:
    found = re.findall(r"imported by (\d+)", ended.out)
    assert len(found) == 2, ended
    return set(found)
