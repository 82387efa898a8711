"""Which process may read a worker's memory where Yama limits that to ancestors."""

import pytest
from clusterrun.workers.fork_server import kernel

PR_SET_PTRACER = 0x59616D61
"""From linux/prctl.h."""


@pytest.mark.parametrize(
    ("scope", "asked"),
    [("", []), ("0\n", []), ("1\n", [(PR_SET_PTRACER, 7)]), ("2\n", []), ("3\n", [])],
    ids=["no Yama", "all", "ancestors", "administrators", "none"],
)
def test_allow_tracing_by_yama_scope(
    monkeypatch: pytest.MonkeyPatch, scope: str, asked: list[tuple[int, int]]
) -> None:
    """Only ptrace_scope 1 needs the call."""
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        kernel, "text_of", {"/proc/sys/kernel/yama/ptrace_scope": scope}.__getitem__
    )
    monkeypatch.setattr(kernel, "prctl", lambda *words: calls.append(words))

    kernel.allow_tracing_by(7)

    assert calls == asked
