"""A file-system root to read facts from: this machine's, or a tree captured on another one."""

import os
from pathlib import Path

from launcher.domain.cpuset import CpuSet


class Tree:
    """Files below a root, in which a missing, unreadable or odd file is data and not an error.

    All paths are relative to the root: ``sys/devices/system/cpu/online``.
    """

    def __init__(self, root: Path) -> None:
        """Take the ``root``: ``/``, or the directory that holds a captured ``sys`` and ``proc``."""
        self._root = os.path.realpath(root)
        self._prefix = self._root.rstrip("/") + "/"

    @property
    def is_live(self) -> bool:
        """Whether this is the running machine and not a captured tree."""
        return self._root == "/"

    def text(self, path: str) -> str:
        """Return what the file says, without white space around it; "" if it can't be read."""
        try:
            # Hundreds of files of a few bytes each: plain descriptors halve the time of open().
            descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return _read_all(descriptor).decode(errors="replace").strip()
        except OSError:
            return ""
        finally:
            os.close(descriptor)

    def integer(self, path: str) -> int | None:
        """Return the number in the file, decimal or 0x; None if there is none."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def cpu_list(self, path: str) -> CpuSet:
        """Return the CPUs of a file in list form, "0-3,8"; none if it isn't there or isn't one."""
        return cpus_of(self.text(path))

    def cpu_map(self, path: str) -> CpuSet:
        """Return the CPUs of a file in mask form, "000000ff,00000000"; none as in ``cpu_list``."""
        try:
            return _from_mask(self.text(path))
        except ValueError:
            return CpuSet()

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; () if there is none."""
        try:
            with os.scandir(self._prefix + path) as entries:
                return tuple(sorted(entry.name for entry in entries))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        return os.access(self._prefix + path, os.F_OK)

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened: a container's device rules show only then."""
        try:
            os.close(os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def parents(self, path: str) -> tuple[str, ...]:
        """Return the directories around the real place of ``path``, innermost first."""
        real = os.path.realpath(self._prefix + path)
        if not real.startswith(self._prefix):
            return ()
        around = Path(real[len(self._prefix) :]).parents
        return tuple(str(parent) for parent in around)[:-1]


def cpus_of(text: str) -> CpuSet:
    """Return the CPUs of a list that the kernel wrote; none if it isn't one."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def _read_all(descriptor: int) -> bytes:
    content = b""
    while chunk := os.read(descriptor, 65536):
        content += chunk
    return content


def _from_mask(text: str) -> CpuSet:
    value = 0
    for group in text.split(","):
        # The kernel writes words of 32 bits, the highest first.
        value = value << 32 | int(group, 16)
    return CpuSet(bit for bit in range(value.bit_length()) if value >> bit & 1)
