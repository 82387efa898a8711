"""What modules print while they are imported: collected, as it is not theirs to print yet."""

from __future__ import annotations

import os
import sys

from ..system.libc import flush_all

_MOST = 4096
_OUTPUT = (1, 2)


class Printed:
    """Standard output and error of this process, from now on until they are given back."""

    def __init__(self) -> None:
        """Divert them."""
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

    def give_back(self) -> None:
        """Have them go where they went."""
        os.close(self._collected)
        for stream, kept in zip(_OUTPUT, self._kept):
            os.dup2(kept, stream)
            os.close(kept)


def import_as_script(name: str, names: tuple[str, ...]) -> None:
    """Import as a script's statement does: what warns of deprecated modules looks at who imports."""
    who = {"__name__": "__main__", "name": name, "names": names}
    eval("__import__(name, None, None, names)", who)  # noqa: S307 - a frame of __main__
