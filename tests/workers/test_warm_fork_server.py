"""Warm fork servers as the agent finds them."""

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.as_another_user import run_as_another_user
from tests.imports import imports
from tests.workers.door import (
    SECONDS_TO_ANSWER,
    SECONDS_TO_FIRST_JOB,
    ForkServerProcess,
    answer_of,
    connected,
    status_of,
)

CONNECT = (
    imports(connected)
    + """
import sys
from pathlib import Path

print(connected(Path(sys.argv[1])))
"""
)


@pytest.mark.needs("root", "setpriv")
def test_a_server_of_another_user_is_none(tmp_path: Path) -> None:
    """With root's capabilities, so that no folder refuses it."""
    path = tmp_path / "server"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        ours = connected(path)
        theirs = run_as_another_user(CONNECT, str(path))

    assert ours is not None
    ours.close()
    assert (theirs.stdout, theirs.stderr) == ("None\n", "")


@pytest.mark.long
def test_one_that_gets_no_job_ends_soon(tmp_path: Path) -> None:
    """Two that start at the same time can take the path one after the other: one is never found."""
    path = tmp_path / "server"
    server = ForkServerProcess.start(sys.executable, os.environ, stays=True)
    assert answer_of(server.channel, {"ready"}, SECONDS_TO_ANSWER)
    server.becomes_ready()
    stay = {"path": str(path), "seconds": 1000.0, "key": {}, "is_owned": False}
    server.channel.send({"kind": "stay_warm", **stay})
    assert answer_of(server.channel, {"warm"}, SECONDS_TO_ANSWER)
    server.close()
    assert path.exists()

    assert status_of(server.pid, SECONDS_TO_FIRST_JOB + 10) == 0
    assert not path.exists()
