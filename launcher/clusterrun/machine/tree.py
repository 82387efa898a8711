"""Reads files below a root, each once, and records the answers, which form a capture."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from msgspec import Struct

from clusterrun.cpuset import MAX_CPUS, CpuSet

_DIGITS = 20
"""Digits of the largest 64-bit number. Python raises an error for thousands of digits."""

_READ_BITS, _WRITE_BIT = 0o444, 0o200
"""Mode bits of a captured file that say what the captured process could do. (Root can read any file.)"""

ROOT = Path("/")

T = TypeVar("T")


class KernelAnswers(Struct, frozen=True):
    """The answers of each method of ``Tree``, by path. Missing files may be omitted."""

    text: dict[str, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    exists: dict[str, bool] = {}
    can_open: dict[str, bool] = {}
    may_use: dict[str, bool] = {}
    real: dict[str, str] = {}
    answer: dict[str, str] = {}
    """What is not in a file, such as NVML's list of GPUs, by name."""


class Tree:
    """The files of a machine. A missing, unreadable or malformed file is data, not an error.

    All paths are relative to the root: ``sys/devices/system/cpu/online``. Each file is read once,
    because it may change meanwhile; to read it again, make a new tree. A tree without a root that has
    another tree's answers behaves as that machine.
    """

    def __init__(self, root: Path | None, answers: KernelAnswers | None = None) -> None:
        """Make a tree.

        Args:
            root: ``/``, or a folder with the ``sys`` and ``proc`` of a machine; None: only the
                ``answers`` exist.
            answers: known answers, to which new ones are added.

        """
        self.answers = KernelAnswers() if answers is None else answers
        self._prefix = None if root is None else os.path.realpath(root).rstrip("/") + "/"
        self._is_this_machine = self._prefix == "/"

    def kernel(self) -> str:
        """Return the version of the machine's kernel; "" if unknown, as in a folder of copied files."""
        return self.answer("kernel", lambda: os.uname().release)

    def text(self, path: str) -> str:
        """Return the text of a file without surrounding white space; "" if it can't be read."""
        return self._once(self.answers.text, path, self._read, "")

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; () if it can't be read."""
        return self._once(self.answers.names, path, _names, ())

    def exists(self, path: str) -> bool:
        return self._once(self.answers.exists, path, os.path.exists, missing=False)

    def can_open(self, path: str) -> bool:
        """Return whether a file can be opened for reading. Only this shows a container's device rules."""
        return self._once(self.answers.can_open, path, self._can_open, missing=False)

    def may_use(self, path: str) -> bool:
        """Return whether the mode of a file lets us read and write it.

        The file is not opened: that may wake up a GPU, and makes us a user of it.
        """
        return self._once(self.answers.may_use, path, self._may_use, missing=False)

    def real(self, path: str) -> str:
        """Return ``path`` with all symbolic links resolved; "" if it leads out of the root."""
        return self._once(self.answers.real, path, self._real, "")

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return an answer that is not in a file.

        Args:
            question: the name under which the answer is captured.
            ask: returns the answer, "" if unknown. It is called on this machine only.

        """
        known = self.answers.answer
        if question not in known:
            known[question] = ask() if self._is_this_machine else ""
        return known[question]

    def integer(self, path: str) -> int | None:
        """Return the number in a file, decimal or 0x; None if there is none."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def cpu_list(self, path: str) -> CpuSet:
        """Return the CPUs in a file in list form, "0-3,8"; empty if it is missing or malformed."""
        return parse_cpus(self.text(path))

    def cpu_map(self, path: str) -> CpuSet:
        """Return the CPUs in a file in mask form, "000000ff,00000000"; empty as in ``cpu_list``."""
        value = 0
        text = self.text(path)
        # A longer mask is not a kernel's, and would take quadratic time.
        for group in text.split(",") if len(text) < MAX_CPUS else ():
            try:
                # 32-bit words, the highest first.
                value = value << 32 | int(group, 16)
            except ValueError:
                return CpuSet()
        size = value.bit_length() if value.bit_length() <= MAX_CPUS else 0
        return CpuSet(bit for bit in range(size) if value >> bit & 1)

    def status_cpus(self, name: str) -> CpuSet:
        """Return the CPUs or NUMA nodes in a line of /proc/self/status; empty if it is missing."""
        return parse_cpus(self.facts("proc/self/status", ":").get(name, ""))

    def facts(self, path: str, separator: str) -> dict[str, str]:
        """Return the values by name in a file of lines "name, separator, value"."""
        lines = (line.partition(separator) for line in self.text(path).splitlines())
        return {name.strip(): value.strip() for name, _, value in lines}

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Return the sorted numbers N of the entries ``prefix`` + N in a directory."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(number for name in names if (number := parse_number(name)) is not None)

    def parents(self, path: str) -> tuple[str, ...]:
        """Return the parent directories of the resolved ``path``, innermost first."""
        return tuple(str(parent) for parent in PurePosixPath(self.real(path)).parents)[:-1]

    def _once(self, known: dict[str, T], path: str, ask: Callable[[str], T], missing: T) -> T:
        """Return the recorded answer, else that of ``ask``, else ``missing``."""
        if path in known:
            return known[path]
        if self._prefix is None:
            return missing
        try:
            answer = ask(self._prefix + path)
        # ValueError: a captured file may contain a path with a zero byte.
        except (OSError, ValueError):
            answer = missing
        known[path] = answer
        return answer

    def _open(self, path: str, flags: int = 0) -> int:
        # For hundreds of small files, plain descriptors take half the time of open().
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        if not self._is_this_machine and not os.fstat(descriptor).st_mode & _READ_BITS:
            os.close(descriptor)
            raise PermissionError(path)
        return descriptor

    def _read(self, path: str) -> str:
        # Opening a FIFO in a captured folder must not block.
        descriptor = self._open(path, 0 if self._is_this_machine else os.O_NONBLOCK)
        try:
            content = b""
            while chunk := os.read(descriptor, 65536):
                content += chunk
        finally:
            os.close(descriptor)
        # Some kernels end their lists of NUMA nodes with a zero byte.
        return content.decode(errors="replace").strip("\0 \t\r\n")

    def _can_open(self, path: str) -> bool:
        os.close(self._open(path, os.O_NONBLOCK))
        return True

    def _may_use(self, path: str) -> bool:
        return os.access(path, os.R_OK | os.W_OK) and (
            self._is_this_machine or bool(Path(path).stat().st_mode & _WRITE_BIT)
        )

    def _real(self, path: str) -> str:
        root = self._prefix or ""
        real = os.path.realpath(path)
        return real.removeprefix(root) if real.startswith(root) else ""


def _names(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        return tuple(sorted(entry.name for entry in entries))


def parse_cpus(text: str) -> CpuSet:
    """Return the CPUs of a list from the kernel; empty if it is malformed."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def parse_number(text: str) -> int | None:
    """Return a decimal number from the kernel, 0 or more; None if it is malformed."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
