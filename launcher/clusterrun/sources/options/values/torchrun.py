"""Read the values of torchrun's own options."""

import signal

from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import did_you_mean
from clusterrun.sources.options.values.choices import switch

BACKENDS = ("static", "c10d")
"""torchrun's backends that need no server."""


NEEDS_A_SERVER = ("etcd", "etcd-v2", "etcd_v2")


NO_HANDLER = (signal.SIGKILL, signal.SIGSTOP)
"""Signals that no program can handle."""


QUOTES = " \t\n'\""


def rendezvous_backend(text: str) -> str:
    if text in NEEDS_A_SERVER:
        raise UsageError(
            f"{text} needs a server of its own, and clusterrun has no such backend",
            "meet at a node of the job:\n  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    if text not in BACKENDS:
        raise UsageError(
            f"{text!r} is not a rendezvous backend",
            did_you_mean(text, BACKENDS) or f"give {' or '.join(BACKENDS)}",
        )
    return text


def rendezvous_conf(text: str) -> dict[str, str]:
    """Read ``KEY=VALUE,KEY=VALUE``, as torchrun splits it; an empty text has none.

    Quotes that a shell has left around the text or a value are dropped.
    """
    bare = text.strip(QUOTES)
    pairs = [pair.partition("=") for pair in bare.split(",")] if bare else []
    for key, equals, value in pairs:
        if not equals or not key.strip(QUOTES) or not value.strip(QUOTES):
            raise UsageError(
                f"{key + equals + value!r} is not KEY=VALUE",
                "write KEY=VALUE,KEY=VALUE, such as join_timeout=900",
            )
    return {key.strip(QUOTES): value.strip(QUOTES) for key, _, value in pairs}


def signal_names(text: str) -> str:
    """Read names of signals, ``SIGTERM,SIGUSR1``; returned as torchrun passes them to workers."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = signal.Signals.__members__
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name!r} is not the name of a signal",
                did_you_mean(name, known) or "give names such as SIGTERM,SIGUSR1",
            )
        if known[name] in NO_HANDLER:
            raise UsageError(f"no program can handle {name}", "leave it out")
    return ",".join(names)


def plugin(text: str) -> str:
    """Read the name by which torchrun would look up a plugin."""
    if not text:
        raise UsageError("the name is empty", "leave it out")
    return text


def local_rank_argument(text: str) -> str:
    """Read which argument passes the local rank to a script, without dashes; "" for none."""
    if text in {"local-rank", "local_rank"}:
        return text
    try:
        return "local-rank" if switch(text) else ""
    except UsageError:
        raise UsageError(
            f"{text!r} is not an argument for the local rank",
            "give local-rank, which torch 2 passes, or local_rank, which torch 1 passed",
        ) from None
