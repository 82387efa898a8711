"""What each rank of a job from Python runs: the pickled call, whose result it leaves in a file.

Executed as a script, by the workers' interpreter: it imports nothing of clusterrun's.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import traceback

# The fork server imports it once for all ranks.
from cloudpickle import Pickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


def main(folder: str) -> None:
    """Make the call that is in ``folder``; leave its result there, or the exception that ended it."""
    with open(os.path.join(folder, "call"), "rb") as file:
        call = pickle.load(file)
    if sys.version_info[:2] != tuple(call["python"]):
        ours, theirs = (".".join(map(str, it)) for it in (sys.version_info[:2], call["python"]))
        sys.exit(f"clusterrun: Python {theirs} pickled the function; this is Python {ours}")
    sys.argv[:] = call["argv"]
    sys.path[:] = call["path"]
    rank = os.environ["RANK"]
    for name, lines in call["cells"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    sys.excepthook = _print_without_our_frames
    result = Result(folder, rank)
    try:
        function, args, kwargs = pickle.loads(call["call"])
        if call["local_rank_first"]:
            args = (int(os.environ["LOCAL_RANK"]), *args)
        result.leave_returned(function(*args, **kwargs))
    except SystemExit as error:
        if not error.code:
            result.leave("returned", "", None)
        raise
    except BaseException as error:
        result.leave_exception(error)
        raise


class Result:
    """The file by which a rank tells the caller how the call ended."""

    def __init__(self, folder: str, rank: str) -> None:
        self._path = os.path.join(folder, "result-" + rank)

    def leave(self, how: str, text: str, value: object) -> None:
        """Write the file aside first: the caller finds a whole one or none."""
        with open(self._path + ".part", "wb") as file:
            pickle.dump((how, text), file)
            ResultPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        os.replace(self._path + ".part", self._path)

    def leave_returned(self, value: object) -> None:
        """Leave what the function has returned.

        Raises:
            TypeError: it can't be pickled.

        """
        try:
            self.leave("returned", "", value)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
            what = type(value).__name__
            raise TypeError(
                f"what the function returned ({what}) can't be pickled: {error}"
            ) from None

    def leave_exception(self, error: BaseException) -> None:
        frames = _without_our_frames(error)
        text = "".join(traceback.format_exception(type(error), error, frames))
        try:
            self.leave("raised", text, error)
        except Exception:  # noqa: BLE001 - an exception may hold anything
            self.leave("raised", text, None)


class ResultPickler(Pickler):  # type: ignore[misc]
    """Sends tensors of GPUs as tensors of the CPU: the caller's process need not use a GPU."""

    def reducer_override(self, value: object) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(value)


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of this file, with which it begins."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames


def _print_without_our_frames(
    kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    # Python prints the traceback that the exception has, not the argument.
    error.__traceback__ = _without_our_frames(error) or error.__traceback__
    if any(entry[1] is None for entry in linecache.cache.values() if len(entry) == 4):
        # Before 3.13, Python's own hook reads lines from files only.
        traceback.print_exception(kind, error, error.__traceback__)
    else:
        sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    main(sys.argv[1])
    # The fork server reads it.
    __ends_at_once__ = True
