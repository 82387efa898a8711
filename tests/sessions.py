"""Sessions of a text table: a file, the line that is typed, and what follows from it."""

import re
from pathlib import Path
from typing import NamedTuple

SESSION = re.compile(r"(?m)(?=^[>$])(?:^>.*\n)*(?:^\$.*\n?)?(?:^[^>$\n].*\n?)*")


class Session(NamedTuple):
    """A file, which may be empty, then what is typed, then what follows; empty lines change nothing."""

    file: tuple[str, ...]
    """Lines of job.yaml, which begin with ``>``."""
    line: str
    """What is typed after ``$``."""
    expected: tuple[str, ...]

    def write_file(self) -> None:
        """Write job.yaml to the current folder if there is one."""
        if self.file:
            Path("job.yaml").write_text("".join(f"{line}\n" for line in self.file))


def sessions_of(*tables: Path, usual: str) -> list[Session]:
    """Return the sessions of tables, without comments; ``usual`` is typed where no line is."""
    texts = [re.sub(r"(?m)^#.*\n", "", table.read_text()) for table in tables]
    return [session(found, usual) for text in texts for found in SESSION.findall(text)]


def session(text: str, usual: str) -> Session:
    """Return the session of a text; its file ends where lines do not begin with ``>``."""
    lines = text.splitlines()
    file = tuple(line[2:] for line in lines if line.startswith(">"))
    first, *rest = lines[len(file) :]
    if first.startswith("$ "):
        return Session(file, first[2:], tuple(rest))
    return Session(file, usual, (first, *rest))
