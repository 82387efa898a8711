"""The known word that is nearest to a mistyped one."""

from collections.abc import Iterable

from clusterrun.job.file_kinds import names_in

LARGEST_FOLDER = 2000
"""Entries of a folder that are looked at: enough for people, quick on a shared file system."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" for the known name nearest to ``word``; "" if none is near."""
    nearest = closest(word, known)
    return f"did you mean {nearest}?" if nearest else ""


def did_you_mean_file(path: str) -> str:
    """Return "did you mean PATH?" for the file beside a missing ``path`` that is nearest to it."""
    folder, slash, name = path.rpartition("/")
    nearest = closest(name, names_in(folder or slash or ".", LARGEST_FOLDER))
    return f"did you mean {folder}{slash}{nearest}?" if nearest else ""


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
