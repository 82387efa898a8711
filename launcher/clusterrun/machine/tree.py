"""Facts in files below a root, each file read once."""

from pathlib import Path, PurePosixPath

from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.files import Files, Folder

_DIGITS = 20
"""The digits of the largest number of 64 bits; Python raises an error for thousands of digits."""


class Tree:
    """Files below a root, in which a missing, unreadable or odd file is data and not an error.

    All paths are relative to the root: ``sys/devices/system/cpu/online``. All that is read of the
    machine is read here, so that a captured machine can be replayed; each file and folder is read
    once, as a machine may change meanwhile.
    """

    def __init__(self, files: Files | Path) -> None:
        """Take the files, or a folder with them: ``/``, or one with a captured ``sys`` and ``proc``."""
        self._files = Folder(files) if isinstance(files, Path) else files
        self._texts: dict[str, str] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self.is_live = self._files.is_live
        self.exists = self._files.exists
        self.can_open = self._files.can_open
        self.may_use = self._files.may_use
        self.answer = self._files.answer

    def text(self, path: str) -> str:
        """Return the text of the file, without white space around it; "" if it can't be read."""
        if path not in self._texts:
            try:
                content = self._files.read(path)
            except OSError:
                content = b""
            # Some kernels end their lists of nodes with a zero byte.
            self._texts[path] = content.decode(errors="replace").strip("\0 \t\r\n")
        return self._texts[path]

    def integer(self, path: str) -> int | None:
        """Return the number in the file, decimal or 0x; None if there is none."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def cpu_list(self, path: str) -> CpuSet:
        """Return the CPUs of a file in list form, "0-3,8"; none if it is missing or no such list."""
        return cpus_of(self.text(path))

    def cpu_map(self, path: str) -> CpuSet:
        """Return the CPUs of a file in mask form, "000000ff,00000000"; none as in ``cpu_list``."""
        value = 0
        for group in self.text(path).split(","):
            try:
                # The kernel writes words of 32 bits, the highest first.
                value = value << 32 | int(group, 16)
            except ValueError:
                return CpuSet()
        return CpuSet(bit for bit in range(value.bit_length()) if value >> bit & 1)

    def own_status(self, name: str) -> CpuSet:
        """Return the CPUs or nodes of one line of /proc/self/status; none if it is missing."""
        return cpus_of(self.facts("proc/self/status", ":").get(name, ""))

    def facts(self, path: str, separator: str) -> dict[str, str]:
        """Return the values by name of a file whose lines are a name, ``separator`` and a value."""
        lines = (line.partition(separator) for line in self.text(path).splitlines())
        return {name.strip(): value.strip() for name, _, value in lines}

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; () if there is none."""
        if path not in self._names:
            try:
                self._names[path] = tuple(sorted(self._files.names(path)))
            except OSError:
                self._names[path] = ()
        return self._names[path]

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Return in order the numbers of the names in a directory that are ``prefix`` and a number."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(int(name) for name in names if name.isdecimal())

    def real(self, path: str) -> str:
        """Return ``path`` with every link in it followed; "" if one leads out of the root."""
        try:
            return self._files.real(path)
        except OSError:
            return ""

    def parents(self, path: str) -> tuple[str, ...]:
        """Return the directories around the real place of ``path``, innermost first."""
        return tuple(str(parent) for parent in PurePosixPath(self.real(path)).parents)[:-1]


def cpus_of(text: str) -> CpuSet:
    """Return the CPUs of a list that the kernel wrote; none if it isn't one."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def number_of(text: str) -> int | None:
    """Return a number that the kernel wrote, none of which is below 0; None if it isn't one."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
