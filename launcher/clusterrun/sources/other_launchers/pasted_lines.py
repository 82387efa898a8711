"""Lines of other launchers that were pasted behind clusterrun: what to type instead."""

from collections.abc import Sequence

from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import command
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

TORCH_MODULES = ("torch.distributed.launch", "torch.distributed.run")

USE_ENV = ("--use-env", "--use_env")

SAME_OPTIONS = ("torchrun", "clusterrun")
"""What may stand behind these may stand behind clusterrun."""

OTHER_OPTIONS = ("accelerate", "deepspeed", "horovodrun", "fabric", "lightning", "composer")

STARTERS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "jsrun", "aprun", "flux")
"""These start clusterrun on each node."""


def expect_no_launcher(words: Sequence[str], where: str) -> None:
    """Return if ``words`` do not begin with another launcher; ``where`` stands before a complaint.

    Raises:
        UsageError: they do.

    """
    if not words:
        return
    name = words[0].rpartition("/")[2]
    if name == "torchrun" or (name in SAME_OPTIONS and _is_command(words[0])):
        raise _is_launcher(where, words[0], words[1:])
    for index, module in enumerate(words[:4]):
        # Behind an interpreter and perhaps its -u: a script's own arguments begin later.
        if module in TORCH_MODULES and index and words[index - 1] == "-m":
            raise _is_launcher(where, module, _with_argument(module, words[index + 1 :]))
    if name in {*OTHER_OPTIONS, *STARTERS} and _is_command(words[0]):
        raise _has_other_options(where, words)


def _is_command(word: str) -> bool:
    """Return whether it can only mean a command: no file here has that name."""
    return "/" in word or kind_of(word) is FileKind.NOTHING


def _with_argument(module: str, rest: Sequence[str]) -> Sequence[str]:
    """Return the words for clusterrun: the older launcher tells a script its rank by an argument."""
    if module == "torch.distributed.launch" and not any(word in USE_ENV for word in rest):
        return ["--pass-local-rank", *rest]
    return rest


def _is_launcher(where: str, name: str, rest: Sequence[str]) -> UsageError:
    return UsageError(
        f"{where}{name} is a launcher itself",
        f"leave it out, its options are clusterrun's too:\n  {command(*rest)}",
    )


def _has_other_options(where: str, words: Sequence[str]) -> UsageError:
    place = next((n for n, word in enumerate(words) if _begins_program(word)), len(words))
    program = [word for word in words[place:] if word not in {"python", "python3"}]
    name = words[0].rpartition("/")[2]
    if name in STARTERS:
        line = command(*(program or ("train.py",)), before=words[:place])
        return UsageError(f"{where}{words[0]} stands before clusterrun", f"type:\n  {line}")
    return UsageError(
        f"{where}{words[0]} is a launcher itself",
        f"leave it and its options out:\n  {command(*(program or ('train.py',)))}",
    )


def _begins_program(word: str) -> bool:
    return word.endswith(".py") or word in {"-m", "python", "python3"}
