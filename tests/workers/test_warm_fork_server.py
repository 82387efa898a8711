"""Warm fork servers as the agent finds them."""

import socket
from pathlib import Path

import pytest

from tests.as_another_user import run_as_another_user
from tests.imports import imports
from tests.workers.door import connected

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
