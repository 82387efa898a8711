"""Native frames and locals of ranks, which py-spy prints; in a child of the agent, which may be killed."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import which

from clusterrun.bounds import LONGEST_TEXT, as_text
from clusterrun.policy.stacks import StackGroup

MOST_OF_A_NODE = 1 << 18
"""Characters that a node answers."""

LEFT_OUT = "\n(the rest is left out)"

MISSING = "has no py-spy, on its agent's PATH or beside its Python: type pip install py-spy there"


def py_spy_program(environ: Mapping[str, str], interpreter: Path) -> Path | None:
    """Return the path of py-spy: on the agent's PATH, or beside its Python; None: there is none."""
    folders = (environ.get("PATH", ""), str(interpreter.parent))
    found = (which("py-spy", path=each) for each in folders)
    return next((Path(each) for each in found if each), None)


def native_stacks(
    program: Path, pids: Mapping[int, int], environ: Mapping[str, str], seconds: float
) -> tuple[StackGroup, ...]:
    """Return what py-spy prints of each process, or why it prints nothing.

    Args:
        program: the path of py-spy.
        pids: process ids, by the number of the worker in the job.
        environ: of py-spy.
        seconds: for all of them together: it reads the symbols of all libraries of a process.

    """
    until = time.monotonic() + seconds
    most = min(LONGEST_TEXT, MOST_OF_A_NODE // max(1, len(pids)))
    started = {number: _start(program, pid, environ) for number, pid in pids.items()}
    return tuple(
        StackGroup((number,), *_printed(dump, until, seconds, most))
        for number, dump in started.items()
    )


Dump = subprocess.Popen[bytes] | str
"""One py-spy; or why it can't be started."""


def _start(program: Path, pid: int, environ: Mapping[str, str]) -> Dump:
    words = [str(program), "dump", "--native", "--locals", "--pid", str(pid)]
    try:
        return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return f"py-spy can't be executed: {error.strerror}"


def _printed(dump: Dump, until: float, seconds: float, most: int) -> tuple[str, bool]:
    """Return the text of one py-spy, and whether it is a stack."""
    if isinstance(dump, str):
        return dump, False
    late = ""
    try:
        printed, errors = dump.communicate(timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        dump.kill()
        printed, errors = dump.communicate()
        late = f"py-spy took longer than {seconds:g} s"
    found = bool(printed.strip())
    said = (printed if found else errors).decode(errors="replace").strip()
    text = "\n".join(filter(None, [said, late])) or "py-spy has printed nothing"
    if len(text) > most:
        text = text[: most - len(LEFT_OUT)] + LEFT_OUT
    return as_text(text), found
