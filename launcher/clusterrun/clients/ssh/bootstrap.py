"""What ``--launcher ssh`` runs on a host: it reads the job from the client, and becomes the command.

Standard input stays open as the command's lifeline (``run.caller``). On both standard streams, a marker
line separates the output of the login shell's startup files from that of the command.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from clusterrun.errors import UsageError


def main() -> NoReturn:
    """Read ``MARK LENGTH`` and the request, and run the job; exit with its exit code."""
    marker, _, length = _read_line().partition(b" ")
    for descriptor in (1, 2):
        os.write(descriptor, b"\x1e%b\n" % marker)
    request = json.loads(_read(int(length)))
    try:
        _check_version(request["version"])
        _apply_request(request)
    except UsageError as error:
        from clusterrun.policy.end_report import EndReport

        os.write(2, EndReport.of_error(error).line(marker.decode()))
        os._exit(error.exit_code)
    os.environ["CLUSTERRUN_CALLER"] = f"2:{marker.decode()}"
    sys.argv = ["clusterrun", *request["argv"]]
    from clusterrun.cli.entry import main as run_command

    sys.exit(run_command())


def _read_line() -> bytes:
    """Read a line, and no byte of what follows."""
    line = b""
    while not line.endswith(b"\n"):
        line += _read(1)
    return line[:-1]


def _read(count: int) -> bytes:
    """Read exactly ``count`` bytes; exit if the client is gone."""
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
            f"clusterrun is version {ours} on this host, but {theirs} on the host that started it",
            "install the same version on all hosts",
        )


def _apply_request(request: dict[str, dict[str, str]]) -> None:
    """Enter the client's folder, and set its variables."""
    folder = str(request["folder"])
    try:
        os.chdir(folder)
    except OSError as error:
        user = os.environ.get("USER") or f"user {os.getuid()}"
        raise UsageError(
            f"{user} can't enter {folder}: {error.strerror}",
            "start the job in a folder that all hosts have, with the same path",
        ) from None
    os.environ.update(request["variables"], PWD=folder)
    time.tzset()
    # No module in the job's folder may hide one of clusterrun's.
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != Path.cwd()]


if __name__ == "__main__":
    main()
