"""How flags may be spelled: with - or _, in full, or abbreviated as far as nothing else begins so."""

from collections.abc import Sequence

from clusterrun.sources.options.table import OPTIONS

FLAG_NAMES = (
    *(name.replace("_", "-") for option in OPTIONS for name in option.names),
    "help",
    "version",
    "print-completion",
)
"""All flags without their dashes."""


TORCHRUN_FLAGS = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("standalone", "max-restarts", "monitor-interval", "start-method", "event-log-handler"),
    *("role", "module", "no-python", "run-path", "log-dir", "redirects", "tee"),
    *("log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters"),
    *("duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr"),
    *("logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
    *("virtual-local-rank", "print-completion", "help"),
)
"""All that torchrun 2.15 has (torch/distributed/run.py): its abbreviations are told from these."""


def full_name(name: str, preferred: Sequence[str] = ()) -> str:
    """Return the flag that ``name`` means, both without dashes; ``name`` with - if it is unclear.

    An abbreviation of one of the ``preferred`` flags is not one of any other, and an option of
    another launcher is none of ours.
    """
    spelled = name.replace("_", "-")
    meant = meanings(spelled)
    among = [known for known in meant if known in preferred]
    if len(among) == 1:
        return among[0]
    return meant[0] if len(meant) == 1 and not _is_foreign(spelled) else spelled


def meanings(name: str) -> tuple[str, ...]:
    """Return the flags that ``name`` spells or abbreviates, all without dashes."""
    # One letter is a short flag: -m must not become the one long flag that begins with m.
    if name in FLAG_NAMES or len(name) < 2:
        return (name,) if name in FLAG_NAMES else ()
    return tuple(known for known in FLAG_NAMES if known.startswith(name))


def _is_foreign(name: str) -> bool:
    """Return whether other launchers have an option of just this name, which is never cut short.

    A line of torchrun's means here what it means there, though: its abbreviations come first.
    """
    if name in FLAG_NAMES or sum(known.startswith(name) for known in TORCHRUN_FLAGS) == 1:
        return False
    from clusterrun.sources.other_launchers.foreign_options import foreign_option

    return foreign_option(name) is not None


def is_flag(word: str) -> bool:
    """Return whether ``word`` is a long flag of ours, perhaps with ``=VALUE`` behind it."""
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    return word.startswith("--") and bool(meanings(name))
