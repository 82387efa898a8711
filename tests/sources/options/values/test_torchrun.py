"""Words of torchrun's own: what they mean, and what is no word of it."""

from collections.abc import Callable

import pytest

from tests.sources.door import (
    UsageError,
    names,
    torchrun,
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (torchrun.rendezvous_backend, "static", "static"),
        (torchrun.rendezvous_backend, "c10d", "c10d"),
        (torchrun.rendezvous_conf, "", {}),
        (torchrun.rendezvous_conf, " a=1 , b = 2=3", {"a": "1", "b": "2=3"}),
        (torchrun.rendezvous_conf, "'a=1,b=2'", {"a": "1", "b": "2"}),
        (torchrun.rendezvous_conf, '"a=1"', {"a": "1"}),
        (torchrun.rendezvous_conf, "a='1', b=\"2\"", {"a": "1", "b": "2"}),
        (torchrun.rendezvous_conf, "''", {}),
        (torchrun.signal_names, "SIGTERM, SIGUSR1", "SIGTERM,SIGUSR1"),
        (torchrun.signal_names, "", ""),
        (names.role, "trainer", "trainer"),
        (torchrun.local_rank_argument, "local_rank", "local_rank"),
        (torchrun.local_rank_argument, "local-rank", "local-rank"),
        (torchrun.local_rank_argument, "1", "local-rank"),
        (torchrun.local_rank_argument, "no", ""),
    ],
)
def test_values(read: Callable[[str], object], text: str, value: object) -> None:
    """Each kind of word, as torchrun's users write it."""
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "complaint", "hint"),
    [
        (
            torchrun.rendezvous_backend,
            "etcd-v2",
            "etcd-v2 needs a server of its own, and clusterrun has no such backend",
            "meet at a node of the job:\n  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        ),
        (
            torchrun.rendezvous_backend,
            "c10",
            "'c10' is not a rendezvous backend",
            "did you mean c10d?",
        ),
        (
            torchrun.rendezvous_backend,
            "zeus",
            "'zeus' is not a rendezvous backend",
            "give static or c10d",
        ),
        (
            torchrun.rendezvous_conf,
            "timeout",
            "'timeout' is not KEY=VALUE",
            "write KEY=VALUE,KEY=VALUE, such as join_timeout=900",
        ),
        (
            torchrun.rendezvous_conf,
            "a=1,b=",
            "'b=' is not KEY=VALUE",
            "write KEY=VALUE,KEY=VALUE, such as join_timeout=900",
        ),
        (
            torchrun.signal_names,
            "SIGTERM,SIGUSR",
            "'SIGUSR' is not the name of a signal",
            "did you mean SIGUSR1?",
        ),
        (torchrun.signal_names, "SIGKILL", "no program can handle SIGKILL", "leave it out"),
        (names.role, "", "'' cannot name a role", "give a word, such as trainer"),
        (
            names.role,
            "r" * 256,
            f"'{'r' * 255}' cannot name a role",
            "give a word, such as trainer",
        ),
        (
            torchrun.local_rank_argument,
            "rank",
            "'rank' is not an argument for the local rank",
            "give local-rank, which torch 2 passes, or local_rank, which torch 1 passed",
        ),
    ],
)
def test_complaints(read: Callable[[str], object], text: str, complaint: str, hint: str) -> None:
    """What is wrong, and what to write instead."""
    with pytest.raises(UsageError) as caught:
        read(text)

    assert (caught.value.message, caught.value.hint) == (complaint, hint)
