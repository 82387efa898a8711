"""Collects what modules print while they are preloaded, as no worker prints it then."""

from __future__ import annotations

import os
import sys

from ..system.libc import flush_all

_MOST = 4096
_OUTPUT = (1, 2)


class CapturedOutput:
    """Standard output and error of this process, collected from now on until ``release``."""

    def __init__(self) -> None:
        self._kept = [os.dup(stream) for stream in _OUTPUT]
        self._collected = os.memfd_create("printed")
        for stream in _OUTPUT:
            os.dup2(self._collected, stream)

    def first_line(self) -> str:
        """Return the first line that has been printed, in quotes; "" if there is none."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        flush_all()
        text = os.pread(self._collected, _MOST, 0).decode("utf-8", "replace")
        return repr(text.splitlines()[0][:200]) if text else ""

    def release(self) -> None:
        os.close(self._collected)
        for stream, kept in zip(_OUTPUT, self._kept):
            os.dup2(kept, stream)
            os.close(kept)


def import_as_script(name: str, names: tuple[str, ...]) -> None:
    """Import as a script's statement does: deprecated modules warn by the name of the importer."""
    namespace = {"__name__": "__main__", "name": name, "names": names}
    eval("__import__(name, None, None, names)", namespace)  # noqa: S307 - a frame of __main__
