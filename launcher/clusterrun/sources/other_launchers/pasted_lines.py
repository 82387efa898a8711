"""Errors for command lines of other launchers typed after ``clusterrun``."""

from collections.abc import Sequence

from clusterrun.errors import UsageError
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.suggestions import command

TORCH_MODULES = ("torch.distributed.launch", "torch.distributed.run")

USE_ENV = ("--use-env", "--use_env")

OTHER_OPTIONS = ("accelerate", "deepspeed", "horovodrun", "fabric", "lightning", "composer")

NODE_STARTERS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "jsrun", "aprun", "flux")
"""Programs that start clusterrun on each node, so they come before it."""


def check_no_launcher(words: Sequence[str], where: str) -> None:
    """Check that ``words`` do not begin with another launcher.

    The error's message begins with ``where``.
    """
    if not words:
        return
    name = words[0].rpartition("/")[2]
    if name == "torchrun" or (name == "clusterrun" and _is_command(words[0])):
        raise _is_launcher(where, words[0], words[1:])
    for index, module in enumerate(words[:4]):
        # After an interpreter and perhaps its -u; further words may be arguments of a script.
        if module in TORCH_MODULES and index and words[index - 1] == "-m":
            raise _is_launcher(where, module, _with_argument(module, words[index + 1 :]))
    if name in {*OTHER_OPTIONS, *NODE_STARTERS} and _is_command(words[0]):
        raise _has_other_options(where, words)


def _is_command(word: str) -> bool:
    """Return whether it can only be a command: no file in this folder has that name."""
    return "/" in word or kind_of(word) is FileKind.NOTHING


def _with_argument(module: str, rest: Sequence[str]) -> Sequence[str]:
    """Return the words for clusterrun: the older launcher passes the local rank as an argument."""
    if module == "torch.distributed.launch" and not any(word in USE_ENV for word in rest):
        return ["--pass-local-rank", *rest]
    return rest


def _is_launcher(where: str, name: str, rest: Sequence[str]) -> UsageError:
    return UsageError(
        f"{where}{name} is a launcher, not a script",
        f"leave it out; clusterrun takes the same options:\n  {command(*rest)}",
    )


def _has_other_options(where: str, words: Sequence[str]) -> UsageError:
    place = next((n for n, word in enumerate(words) if _begins_program(word)), len(words))
    program = [word for word in words[place:] if word not in {"python", "python3"}]
    name = words[0].rpartition("/")[2]
    if name in NODE_STARTERS:
        line = command(*(program or ("train.py",)), before=words[:place])
        return UsageError(f"{where}{words[0]} must come before clusterrun", f"type:\n  {line}")
    return UsageError(
        f"{where}{words[0]} is a launcher, not a script",
        f"leave it and its options out:\n  {command(*(program or ('train.py',)))}",
    )


def _begins_program(word: str) -> bool:
    return word.endswith(".py") or word in {"-m", "python", "python3"}
