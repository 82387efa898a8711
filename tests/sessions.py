"""Sessions of a text table: files, the line that is typed, and what follows from it."""

import re
from pathlib import Path
from typing import NamedTuple

SESSION = re.compile(r"(?m)(?=^\w*[>$])(?:^\w*>.*\n)*(?:^\$.*\n?)?(?:^(?!\w*[>$]).+\n?)*")


class Session(NamedTuple):
    """Files, which may be none, then what is typed, then what follows; empty lines change nothing."""

    files: tuple[str, ...]
    """Lines of job.yaml, which begin with ``>``, and of a file with the name before that."""
    line: str
    """What is typed after ``$``."""
    expected: tuple[str, ...]

    def __str__(self) -> str:
        """Return what a test of it is called: what is typed, after the last line of its files."""
        return " | ".join([*self.files[-1:], self.line])

    def write_files(self) -> None:
        """Write the files to the current folder."""
        texts: dict[str, str] = {}
        for line in self.files:
            name, _, text = line.partition(">")
            texts[name] = f"{texts.get(name, '')}{text[1:]}\n"
        for name, text in texts.items():
            Path(name or "job.yaml").write_text(text)


def sessions_of(*tables: Path, usual: str) -> list[Session]:
    """Return the sessions of tables, without comments; ``usual`` is typed where no line is."""
    texts = [re.sub(r"(?m)^#.*\n", "", table.read_text()) for table in tables]
    return [session(found, usual) for text in texts for found in SESSION.findall(text)]


def session(text: str, usual: str) -> Session:
    """Return the session of a text, which begins with the lines of its files."""
    lines = text.splitlines()
    files = tuple(line for line in lines if re.match(r"\w*>", line))
    first, *rest = lines[len(files) :]
    if first.startswith("$ "):
        return Session(files, first[2:], tuple(rest))
    return Session(files, usual, (first, *rest))
