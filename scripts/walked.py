"""A process that is walked: it records which functions of clusterrun it calls. ``scripts/walk`` starts it.

``sys.setprofile`` reports the calls of the thread that sets it: an agent and a caller have one thread.
What the process forks, such as the relay, is not recorded; what it executes, such as the fork server
and with it the workers, knows nothing of the record. A function is written when it is called for the
first time, so that a process that is killed leaves what it has passed until then.

This file imports little: whatever it imports, the walked process has imported, too.
"""

import importlib
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

AGENT = "agent"
CALLER = "caller"

MODULE = "<module>"
"""The name of the code that runs when a module is imported."""

CO_OPTIMIZED = 1
"""A function's code has this flag, a class's body has not: ``inspect``, which takes long to import."""


def main() -> None:
    """Run ``clusterrun WORD...``; or ``SCRIPT WORD...``, if the module that calls agents is named."""
    folder, package, calls_agents, *words = sys.argv[1:]
    if not calls_agents:
        sys.argv = ["clusterrun", *words]
        record(AGENT, folder, package)
        # As the installed command does.
        entry = importlib.import_module("clusterrun.cli.entry")
        sys.exit(entry.main())
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    record(CALLER, folder, package)
    here = str(Path(__file__).parent)
    begin = f"import sys; sys.path.append({here!r}); import walked; sys.path.pop()"
    names = vars(importlib.import_module(calls_agents))
    begin += f"; walked.record('{AGENT}', {folder!r}, {package!r})"
    names["PROGRAM"] = f"{begin}\n{names['PROGRAM']}"
    runpy.run_path(words[0], run_name="__main__")


def record(process: str, folder: str, package: str) -> None:
    """Record what this thread calls from here on; of several agents of a caller, only the first does.

    A line has the file of a function, the line and the name of its definition, and how many functions
    of the package were being called then. A module that is imported has the name ``MODULE``.

    Args:
        process: ``AGENT`` or ``CALLER``, the name of the record's file.
        folder: where that file is.
        package: the folder of the package whose functions are recorded.

    """
    try:
        file = os.open(Path(folder, process), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    seen = set[tuple[str, int, str]]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(package):
            return
        place = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if place in seen or not (code.co_name == MODULE or is_named(code)):
            return
        seen.add(place)
        depth, above = 0, frame.f_back
        while above is not None:
            depth += above.f_code.co_filename.startswith(package) and is_named(above.f_code)
            above = above.f_back
        os.write(file, "\t".join((*map(str, place), f"{depth}\n")).encode())

    os.register_at_fork(after_in_child=partial(sys.setprofile, None))
    sys.setprofile(note)


def is_named(code: CodeType) -> bool:
    """Return whether this is the code of a function with a name; lambdas and comprehensions have none."""
    return bool(code.co_flags & CO_OPTIMIZED) and not code.co_name.startswith("<")


if __name__ == "__main__":
    main()
