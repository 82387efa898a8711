"""Recording all that is read of a machine, so that it can be read again elsewhere."""

from collections.abc import Callable

from clusterrun.machine.captures.archive import Entry, folders_around, follow
from clusterrun.machine.captures.folder import ANSWERS
from clusterrun.machine.tree import Files

SEEN, READ, USED = 0, 0o444, 0o644
"""Modes of files that were only listed, that could be read, and that could be written, too."""

_KEPT_LINES = {
    # Process and user ids are private.
    "proc/self/status": ("Cpus_allowed", "Mems_allowed"),
    # So are other mounts. The mount of /proc is kept so that the file is not empty.
    "proc/self/mountinfo": (" - cgroup", " - proc "),
}
"""Files with private lines: only lines with one of these texts are kept."""


class Recorder:
    """``Files`` that reads from others and keeps what it has read, unreadable files included."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._entries: dict[str, Entry] = {}
        self._folders: set[str] = set()

    @property
    def is_live(self) -> bool:
        return self._files.is_live

    def recorded(self) -> tuple[dict[str, Entry], set[str]]:
        """Return all files that were read or listed, by path, and the folders that were listed."""
        folders = self._folders | folders_around(self._entries).keys()
        entries = {path: entry for path, entry in self._entries.items() if path not in folders}
        return entries, self._folders

    def read(self, path: str) -> bytes:
        try:
            content = self._files.read(path)
        except OSError:
            # A file may be opened, and yet not be read.
            self.can_open(path)
            raise
        self._keep(self._place(path), Entry(_kept(path, content), READ))
        return content

    def names(self, path: str) -> list[str]:
        names = self._files.names(path)
        place = self._place(path)
        self._folders.add(place)
        for name in names:
            try:
                self.link(f"{place}/{name}")
            except OSError:
                self._keep(f"{place}/{name}", Entry(mode=SEEN))
        return names

    def exists(self, path: str) -> bool:
        there = self._files.exists(path)
        if there:
            self._keep(self._place(path), Entry(mode=SEEN))
        return there

    def can_open(self, path: str) -> bool:
        can = self._files.can_open(path)
        if can or self.exists(path):
            self._keep(self._place(path), Entry(mode=READ if can else SEEN))
        return can

    def may_use(self, path: str) -> bool:
        may = self._files.may_use(path)
        if may or self.exists(path):
            self._keep(self._place(path), Entry(mode=USED if may else SEEN))
        return may

    def link(self, path: str) -> str:
        target = self._files.link(path)
        self._entries[path] = Entry(target=target)
        return target

    def real(self, path: str) -> str:
        self._place(path)
        return self._files.real(path)

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        answer = self._files.answer(question, ask)
        if answer:
            self._entries[f"{ANSWERS}/{question}"] = Entry(answer.encode())
        return answer

    def _keep(self, place: str, entry: Entry) -> None:
        known = self._entries.get(place)
        if known is not None:
            entry = Entry(entry.content or known.content, entry.mode | known.mode, known.target)
        self._entries[place] = entry

    def _place(self, path: str) -> str:
        """Return the real path; the links on the way are recorded, too."""
        # The links of /proc/self lead to a process id, which is no fact of the machine.
        if not path.startswith("sys/"):
            return path
        try:
            return follow(path, self.link)
        except OSError:
            return path


def _kept(path: str, content: bytes) -> bytes:
    kept = _KEPT_LINES.get(path)
    if kept is None:
        return content
    lines = content.decode(errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if any(word in line for word in kept)).encode()
