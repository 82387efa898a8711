"""Questions about files below a root; each is asked once, and the answers are the capture."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from msgspec import Struct

from clusterrun.cpuset import MAX_CPUS, CpuSet

_DIGITS = 20
"""The digits of the largest number of 64 bits; Python raises an error for thousands of digits."""

_TO_READ, _TO_WRITE = 0o444, 0o200
"""Bits of a mode that let the captured process read or write a file; root can read any file."""

ROOT = Path("/")
"""Of this machine."""

T = TypeVar("T")


class KernelAnswers(Struct, frozen=True):
    """The answers to each question of a ``Tree``, by path; what is missing may be left out."""

    text: dict[str, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    exists: dict[str, bool] = {}
    can_open: dict[str, bool] = {}
    may_use: dict[str, bool] = {}
    real: dict[str, str] = {}
    answer: dict[str, str] = {}
    """By question: what no file has, as NVML's list of GPUs."""


class Tree:
    """Files below a root, in which a missing, unreadable or odd file is data and not an error.

    All paths are relative to the root: ``sys/devices/system/cpu/online``. All that is read of the
    machine is asked here, and each question once, as a machine may change meanwhile. To look at
    what changes, make a new tree for each look. A tree with the answers of another, and without a
    root, is that other machine.
    """

    def __init__(self, root: Path | None, answers: KernelAnswers | None = None) -> None:
        """Ask below the root, unless there is an answer already.

        Args:
            root: ``/``, or a folder with the ``sys`` and ``proc`` of a machine; None: what has no
                answer is missing.
            answers: those that are known; all that is asked is added.

        """
        self.answers = KernelAnswers() if answers is None else answers
        self._prefix = None if root is None else os.path.realpath(root).rstrip("/") + "/"
        self._is_here = self._prefix == "/"

    def kernel(self) -> str:
        """Return the version of the kernel that shows these files, here or where they were captured.

        "" if they are not a kernel's: then some may be missing.
        """
        return self.answer("kernel", lambda: os.uname().release)

    def text(self, path: str) -> str:
        """Return the text of the file, without white space around it; "" if it can't be read."""
        return self._once(self.answers.text, path, self._read, "")

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory; () if there is none."""
        return self._once(self.answers.names, path, _names, ())

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        return self._once(self.answers.exists, path, os.path.exists, missing=False)

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened: a container's device rules show only then."""
        return self._once(self.answers.can_open, path, self._can_open, missing=False)

    def may_use(self, path: str) -> bool:
        """Return whether the file's mode lets us read and write it, without opening it.

        Opening the file of a GPU may wake it up, and makes us a user of it.
        """
        return self._once(self.answers.may_use, path, self._may_use, missing=False)

    def real(self, path: str) -> str:
        """Return ``path`` with every link in it followed; "" if one leads out of the root."""
        return self._once(self.answers.real, path, self._real, "")

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return what no file has: on this machine by ``ask``, which returns "" if nothing is known.

        Args:
            question: the name under which the answer is captured.
            ask: called on this machine only.

        """
        known = self.answers.answer
        if question not in known:
            known[question] = ask() if self._is_here else ""
        return known[question]

    def integer(self, path: str) -> int | None:
        """Return the number in the file, decimal or 0x; None if there is none."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def cpu_list(self, path: str) -> CpuSet:
        """Return the CPUs of a file in list form, "0-3,8"; none if it is missing or no such list."""
        return parse_cpus(self.text(path))

    def cpu_map(self, path: str) -> CpuSet:
        """Return the CPUs of a file in mask form, "000000ff,00000000"; none as in ``cpu_list``."""
        value = 0
        text = self.text(path)
        # No mask of a kernel is as long, and a longer one takes quadratic time.
        for group in text.split(",") if len(text) < MAX_CPUS else ():
            try:
                # The kernel writes words of 32 bits, the highest first.
                value = value << 32 | int(group, 16)
            except ValueError:
                return CpuSet()
        size = value.bit_length() if value.bit_length() <= MAX_CPUS else 0
        return CpuSet(bit for bit in range(size) if value >> bit & 1)

    def status_cpus(self, name: str) -> CpuSet:
        """Return the CPUs or nodes of one line of /proc/self/status; none if it is missing."""
        return parse_cpus(self.facts("proc/self/status", ":").get(name, ""))

    def facts(self, path: str, separator: str) -> dict[str, str]:
        """Return the values by name of a file whose lines are a name, ``separator`` and a value."""
        lines = (line.partition(separator) for line in self.text(path).splitlines())
        return {name.strip(): value.strip() for name, _, value in lines}

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Return in order the numbers of the names in a directory that are ``prefix`` and a number."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(number for name in names if (number := parse_number(name)) is not None)

    def parents(self, path: str) -> tuple[str, ...]:
        """Return the directories around the real place of ``path``, innermost first."""
        return tuple(str(parent) for parent in PurePosixPath(self.real(path)).parents)[:-1]

    def _once(self, known: dict[str, T], path: str, ask: Callable[[str], T], missing: T) -> T:
        """Return the known answer, or ask below the root: ``missing`` if that is an OSError."""
        if path in known:
            return known[path]
        if self._prefix is None:
            return missing
        try:
            answer = ask(self._prefix + path)
        # ValueError: a captured file may name a path that no kernel has, with a zero byte in it.
        except (OSError, ValueError):
            answer = missing
        known[path] = answer
        return answer

    def _open(self, place: str, flags: int = 0) -> int:
        # Hundreds of files of a few bytes each: plain descriptors halve the time of open().
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | flags)
        if not self._is_here and not os.fstat(descriptor).st_mode & _TO_READ:
            os.close(descriptor)
            raise PermissionError(place)
        return descriptor

    def _read(self, place: str) -> str:
        # A captured folder may have a FIFO, whose other end nobody opens.
        descriptor = self._open(place, 0 if self._is_here else os.O_NONBLOCK)
        try:
            content = b""
            while chunk := os.read(descriptor, 65536):
                content += chunk
        finally:
            os.close(descriptor)
        # Some kernels end their lists of nodes with a zero byte.
        return content.decode(errors="replace").strip("\0 \t\r\n")

    def _can_open(self, place: str) -> bool:
        os.close(self._open(place, os.O_NONBLOCK))
        return True

    def _may_use(self, place: str) -> bool:
        return os.access(place, os.R_OK | os.W_OK) and (
            self._is_here or bool(Path(place).stat().st_mode & _TO_WRITE)
        )

    def _real(self, place: str) -> str:
        root = self._prefix or ""
        real = os.path.realpath(place)
        return real.removeprefix(root) if real.startswith(root) else ""


def _names(place: str) -> tuple[str, ...]:
    with os.scandir(place) as entries:
        return tuple(sorted(entry.name for entry in entries))


def parse_cpus(text: str) -> CpuSet:
    """Return the CPUs of a list that the kernel wrote; none if it isn't one."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def parse_number(text: str) -> int | None:
    """Return a number that the kernel wrote, none of which is below 0; None if it isn't one."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
