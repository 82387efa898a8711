"""The far end of ``--launcher ssh``: takes the job from the client, and becomes the ordinary command.

Its standard input stays open: it is the command's lifeline (``run.caller``). What a login shell's
files have printed ends with a line of ours on standard output and on standard error.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from clusterrun.errors import UsageError


def main() -> NoReturn:
    """Read ``MARK LENGTH`` and the call, and run its job; exit with its exit code."""
    mark, _, length = _line().partition(b" ")
    for descriptor in (1, 2):
        os.write(descriptor, b"\x1e%b\n" % mark)
    call = json.loads(_bytes(int(length)))
    try:
        _check_version(call["version"])
        _take_over(call)
    except UsageError as error:
        from clusterrun.policy.end_report import EndReport

        os.write(2, EndReport.of_error(error).line(mark.decode()))
        os._exit(error.exit_code)
    os.environ["CLUSTERRUN_CALLER"] = f"2:{mark.decode()}"
    sys.argv = ["clusterrun", *call["argv"]]
    from clusterrun.cli.entry import main as run_command

    sys.exit(run_command())


def _line() -> bytes:
    """Read a line, and no byte more: what follows is for others."""
    line = b""
    while not line.endswith(b"\n"):
        line += _bytes(1)
    return line[:-1]


def _bytes(count: int) -> bytes:
    """Read so many bytes; exit if the client is gone."""
    found = b""
    while len(found) < count:
        more = os.read(0, count - len(found))
        if not more:
            os._exit(0)
        found += more
    return found


def _check_version(theirs: str) -> None:
    from importlib.metadata import version

    if (ours := version("clusterrun")) != theirs:
        raise UsageError(
            f"clusterrun is version {ours} here, but {theirs} on the host that started it",
            "install the same version on all hosts",
        )


def _take_over(call: dict[str, dict[str, str]]) -> None:
    """Enter the client's folder, and take its variables."""
    folder = str(call["folder"])
    try:
        os.chdir(folder)
    except OSError as error:
        user = os.environ.get("USER") or f"user {os.getuid()}"
        raise UsageError(
            f"{user} can't enter {folder}: {error.strerror}",
            "start the job in a folder that all hosts have, with the same path",
        ) from None
    os.environ.update(call["variables"])
    time.tzset()
    # As Python would have found it: -m puts none of the job's modules before ours.
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != Path.cwd()]


if __name__ == "__main__":
    main()
