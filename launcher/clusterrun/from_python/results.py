"""The results of a job's ranks, read from the files that they have left."""

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from clusterrun.domain.ranks import GlobalRank
from clusterrun.from_python.errors import RemoteTraceback


class Results:
    """The files of all ranks of this node, opened: they can be read after the folder is gone."""

    def __init__(self, folder: Path, ranks: Iterable[GlobalRank]) -> None:
        """Open the file of each rank that has left one."""
        paths = {rank: folder / f"result-{rank}" for rank in ranks}
        self._files: dict[GlobalRank, BinaryIO] = {
            rank: path.open("rb") for rank, path in paths.items() if path.exists()
        }

    def __contains__(self, rank: GlobalRank) -> bool:
        return rank in self._files

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def returned(self, rank: GlobalRank) -> Any:
        """Return what the function returned on a rank.

        Raises:
            Exception: what unpickling raises, with a note that names the rank.

        """
        _, _, file = self._open(rank)
        try:
            return pickle.load(file)
        except Exception as error:
            error.add_note(f"while clusterrun unpickled the result of rank {rank}")
            raise

    def raised(self, rank: GlobalRank) -> BaseException | None:
        """Return the exception that left the function on a rank; None if none did.

        Its traceback instead, if the exception could not be pickled or unpickled.
        """
        if rank not in self._files:
            return None
        how, text, file = self._open(rank)
        if how != "raised":
            return None
        try:
            error = pickle.load(file)
        except Exception:  # noqa: BLE001 - a class may need more arguments than it has pickled
            error = None
        return error if isinstance(error, BaseException) else RemoteTraceback(text)

    def _open(self, rank: GlobalRank) -> tuple[str, str, BinaryIO]:
        """Return how the call ended, the traceback, and the file from where the value begins."""
        file = self._files[rank]
        file.seek(0)
        how, text = pickle.load(file)
        return how, text, file
