"""Lines of torch's own launchers that were pasted behind clusterrun: what to type instead."""

from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.sources.suggestions import command

TORCH_MODULES = ("torch.distributed.launch", "torch.distributed.run")

USE_ENV = ("--use-env", "--use_env")


def expect_no_launcher(words: Sequence[str], where: str) -> None:
    """Return if ``words`` do not begin with another launcher; ``where`` stands before a complaint.

    Raises:
        UsageError: they do.

    """
    if words and words[0].rpartition("/")[2] == "torchrun":
        raise _is_launcher(where, words[0], words[1:])
    for index, module in enumerate(words[:4]):
        # Behind an interpreter and perhaps its -u: a script's own arguments begin later.
        if module in TORCH_MODULES and index and words[index - 1] == "-m":
            raise _is_launcher(where, module, _with_argument(module, words[index + 1 :]))


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
