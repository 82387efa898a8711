"""How flags may be typed: with - or _, in full, or abbreviated until only one flag fits."""

from collections.abc import Sequence

from clusterrun.cli.commands.table import FLAG_OPTIONS
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.table import OPTIONS


def flag_names(options: Sequence[Option[object]]) -> tuple[str, ...]:
    """Return the flags of ``options`` and those that name a command, all without dashes."""
    rows = (*options, *FLAG_OPTIONS)
    return tuple(name.replace("_", "-") for row in rows for name in row.names)


FLAG_NAMES = flag_names(OPTIONS)

TORCHRUN_FLAGS = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("standalone", "max-restarts", "monitor-interval", "start-method", "event-log-handler"),
    *("role", "module", "no-python", "run-path", "log-dir", "redirects", "tee"),
    *("log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters"),
    *("duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr"),
    *("logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
    *("virtual-local-rank", "print-completion", "help"),
)
"""All flags of torchrun 2.15 (torch/distributed/run.py), in which its abbreviations are looked up."""


def full_name(name: str, preferred: Sequence[str] = (), known: Sequence[str] = FLAG_NAMES) -> str:
    """Return the flag that ``name`` means, both without dashes; ``name`` with - if none or several.

    An abbreviation of one ``preferred`` flag means that flag. The exact name of another launcher's
    option is no abbreviation.
    """
    spelled = name.replace("_", "-")
    meant = meanings(spelled, known)
    among = [flag for flag in meant if flag in preferred]
    if len(among) == 1:
        return among[0]
    return meant[0] if len(meant) == 1 and not _is_foreign(spelled, known) else spelled


def meanings(name: str, known: Sequence[str] = FLAG_NAMES) -> tuple[str, ...]:
    """Return the flags that ``name`` is or abbreviates, all without dashes."""
    # One letter is a short flag: -m must not become the one long flag that begins with m.
    if name in known or len(name) < 2:
        return (name,) if name in known else ()
    return tuple(flag for flag in known if flag.startswith(name))


def is_flag(word: str) -> bool:
    """Return whether ``word`` is a long flag of ours, perhaps with ``=VALUE``."""
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    return word.startswith("--") and bool(meanings(name))


def _is_foreign(name: str, known: Sequence[str]) -> bool:
    """Return whether ``name`` is in full an option of other launchers.

    An abbreviation that torchrun takes means here what it means there.
    """
    if name in known or sum(flag.startswith(name) for flag in TORCHRUN_FLAGS) == 1:
        return False
    from clusterrun.sources.other_launchers.foreign_options import foreign_option

    return foreign_option(name) is not None
