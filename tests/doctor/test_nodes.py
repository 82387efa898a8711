"""What torch crashes or hangs in is done by a child; a node that does not answer is named."""

import sys
import threading

import pytest
from free_ports import free_port

from tests.doctor.door import Exchange, Level, NodeFacts, TorchFacts, nodes
from tests.doctor.nodes import NODES


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise ImportError('libcudart.so.12')", "ImportError: libcudart.so.12"),
        ("import os; os.abort()", "its process crashes"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
        ("print('no JSON')", "its process crashes"),
        ('print(\'{"nccl": "2.28", "gpus": 2}\')', TorchFacts("2.28", 2)),
    ],
)
def test_a_child(code: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "CHILD", (sys.executable, "-c", code))
    seconds = 0.5 if "sleep" in code else 30.0

    assert nodes.asked_child(TorchFacts, seconds, {}) == fault


def test_a_node_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 waits, and goes on; the others get what it concludes."""
    torch_distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(nodes, "SECONDS_FOR_ENTRY", 0.5)
    port = free_port()
    exchanges = [
        Exchange(
            torch_distributed.TCPStore(
                "127.0.0.1", port, is_master=rank == 0, wait_for_workers=False
            ),
            rank,
        )
        for rank in range(2)
    ]
    known: list[nodes.Nodes] = []

    def other() -> None:
        exchanges[1].gather(NODES[1], range(3))
        known.append(exchanges[1].announced(nodes.Nodes))
        exchanges[1].leave()

    thread = threading.Thread(target=other)
    thread.start()
    table = nodes.Table(exchanges[0], [])
    table.after_facts(exchanges[0].gather(NODES[0], range(3)), [])
    exchanges[0].leave(1)
    thread.join()

    assert known == [nodes.Nodes((0, 1), NODES[:2], ())]
    missing = table.health.findings[0]
    assert (missing.level, missing.found) == (
        Level.FAILURE,
        "rank 2: no answer, see its own lines",
    )


def test_several_tasks_of_a_node() -> None:
    """The first of them checks it."""

    class Nowhere:
        def announce(self, value: object) -> None:
            assert isinstance(value, nodes.Nodes)
            assert value.ranks == (0, 2)

    same: list[NodeFacts | None] = [NODES[0], NODES[0], NODES[1], NODES[1]]
    table = nodes.Table(Nowhere(), [])  # type: ignore[arg-type]
    table.after_facts(same, [])

    assert (table.health.nodes, table.others) == (("n0", "n1"), 3)
