"""The known word that is nearest to a mistyped one."""

from collections.abc import Iterable, Iterator

from clusterrun.errors import printable
from clusterrun.job.file_kinds import FileKind, kind_of, names_in

MAX_NAMES_IN_FOLDER = 2000
"""More entries of a folder are not read, because a shared file system may be slow."""

MAX_FOLDERS = 100
"""More subfolders of the current folder are not searched for a file."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" for the known name nearest to ``word``; "" if none is near."""
    nearest = closest(word, known)
    return f"did you mean {printable(nearest)}?" if nearest else ""


def did_you_mean_file(path: str) -> str:
    """Return "did you mean PATH?" for a file that ``path``, which does not exist, may mean; or "".

    The same name elsewhere comes first: the end of the path relative to the current folder, or a file
    in one of its subfolders. Then come similar names of the file and its folders.
    """
    nearest = next((found for found in (*_elsewhere(path), _corrected(path)) if found), "")
    return f"did you mean {printable(nearest)}?" if nearest else ""


def _elsewhere(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for start in range(1, len(parts)):
        found = "/".join(parts[start:])
        if kind_of(found) is FileKind.FILE:
            yield found
    if parts:
        folders = sorted(each for each in _folders_in(".") if each[0] != ".")[:MAX_FOLDERS]
        places = (f"{folder}/{parts[-1]}" for folder in folders)
        yield from (place for place in places if kind_of(place) is FileKind.FILE)


def _corrected(path: str) -> str:
    *folders, name = path.split("/")
    found = ""
    for folder in folders:
        is_there = kind_of(f"{found}{folder}/") is FileKind.FOLDER
        if not (right := folder if is_there else closest(folder, _folders_in(found or "."))):
            return ""
        found += f"{right}/"
    if kind_of(f"{found}{name}") is FileKind.FILE:
        return found + name
    nearest = name and closest(name, names_in(found or ".", MAX_NAMES_IN_FOLDER))
    return nearest and found + nearest


def _folders_in(folder: str) -> set[str]:
    every = names_in(folder, MAX_NAMES_IN_FOLDER, folders=True)
    return {*every} - {*names_in(folder, MAX_NAMES_IN_FOLDER)}


def closest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known name that ``word`` abbreviates or misspells; "" if none is similar.

    A name that differs only in case comes first. ``likeness`` is difflib's cutoff, from 0 to 1.
    """
    from difflib import get_close_matches

    names = sorted(known)
    if same := [name for name in names if name.casefold() == word.casefold()]:
        return same[0]
    abbreviated = [name for name in names if len(word) > 1 and name.startswith(word)]
    found = abbreviated or get_close_matches(word, names, n=1, cutoff=likeness)
    return found[0] if found else ""
