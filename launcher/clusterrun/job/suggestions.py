"""The known word that is nearest to a mistyped one."""

from collections.abc import Iterable, Iterator

from clusterrun.errors import printable
from clusterrun.job.file_kinds import FileKind, kind_of, names_in

MAX_NAMES_IN_FOLDER = 2000
"""Entries of a folder that are looked at: enough for people, quick on a shared file system."""

MAX_FOLDERS = 100
"""Folders of this one in which a file is looked for."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" for the known name nearest to ``word``; "" if none is near."""
    nearest = closest(word, known)
    return f"did you mean {printable(nearest)}?" if nearest else ""


def did_you_mean_file(path: str) -> str:
    """Return "did you mean PATH?" for the file that is probably meant by a missing ``path``.

    The same name elsewhere is nearest: at the end of the path as seen from here, or in a folder of
    this one. Then comes what is spelled nearly so, the file and the folders that lead to it.
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
    """Return the known name that ``word`` abbreviates or misspells; "" if none is near.

    The same letters in another case are nearest. ``likeness`` is the least that counts as near, from
    0 to 1, as difflib has it.
    """
    from difflib import get_close_matches

    names = sorted(known)
    if same := [name for name in names if name.casefold() == word.casefold()]:
        return same[0]
    abbreviated = [name for name in names if len(word) > 1 and name.startswith(word)]
    found = abbreviated or get_close_matches(word, names, n=1, cutoff=likeness)
    return found[0] if found else ""
