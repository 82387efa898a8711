"""Workers of a second attempt start in the same state as those of the first."""

import os
import re

import pytest

from tests.contract.in_place.programs_in_place import START_METHODS
from tests.contract.launched import Launcher

each_method = pytest.mark.parametrize("method", START_METHODS)


@each_method
def test_second_attempt_draws_new_random_numbers(clusterrun: Launcher, method: str) -> None:
    """As fresh interpreters do; numbers drawn from a seed are the same."""
    ended = clusterrun.script(
        """
        import os
        import random
        import secrets
        import uuid

        drawn = random.random(), secrets.token_hex(), uuid.uuid4()
        print("drawn", *drawn)
        random.seed(1)
        print("seeded", random.random())
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise SystemExit(5)
        """,
        *("--start-method", method, "--max-restarts", "1"),
        workers=2,
    ).ended()

    drawn = re.findall(r"drawn (\S+) (\S+) (\S+)\n", ended.out)
    seeded = re.findall(r"seeded (\S+)\n", ended.out)
    assert ended.code == 0, ended.err
    # The second worker of the first attempt may have been stopped before it printed.
    assert len(drawn) >= 3
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [len(drawn)] * 3
    assert len(set(seeded)) == 1


@each_method
def test_second_attempt_starts_in_the_same_state(clusterrun: Launcher, method: str) -> None:
    """Changes that the first attempt made to its process are gone."""
    ended = clusterrun.script(
        """
        import json
        import os
        import signal
        import sys

        limits = sys.getrecursionlimit(), os.nice(0), signal.getsignal(signal.SIGTERM)
        print("begins", hasattr(json, "mine"), "MINE" in os.environ, *limits, len(sys.argv))
        print("numbers", os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid() > 1)
        json.mine = os.environ["MINE"] = "1"
        sys.setrecursionlimit(5000)
        sys.argv.append("more")
        os.nice(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "2":
            os._exit(6)
        """,
        *("--start-method", method, "--max-restarts", "2", "--no-fail-fast"),
        workers=1,
    ).ended()

    begins = re.findall(r"begins (.*)\n", ended.out)
    assert ended.code == 0, ended.err
    assert begins == [f"False False 1000 {os.nice(0)} 0 1"] * 3
    assert re.findall(r"numbers (\d)", ended.out) == ["0", "1", "2"]
