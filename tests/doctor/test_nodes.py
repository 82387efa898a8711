"""The program on each node: its child process, the exchange of values, and missing answers."""

import sys
import threading

import pytest
from clusterrun.clients.doctor import compare, node_program
from clusterrun.clients.doctor.compare import NodeFindings, NodeMeasurements
from clusterrun.clients.doctor.node_program import NotCompared, StoreExchange
from clusterrun.clients.doctor.torch_program import NetworkSpeeds, TorchFacts
from free_ports import free_port
from msgspec.structs import replace

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
def test_child_result_or_reason_of_failure(
    code: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_program, "CHILD", (sys.executable, "-c", code))
    seconds = 0.5 if "sleep" in code else 30.0

    assert node_program.run_child(TorchFacts, seconds, {}) == fault


def test_missing_rank_is_none_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 waits for a limited time; then all ranks get the same values."""
    torch_distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(node_program, "SECONDS_FOR_VALUE", 0.5)
    port = free_port()
    first, other = (
        StoreExchange(
            torch_distributed.TCPStore(
                "127.0.0.1", port, is_master=rank == 0, wait_for_workers=False
            ),
            rank,
            3,
        )
        for rank in range(2)
    )
    shared = []

    def share_and_leave() -> None:
        shared.append(other.share(NODES[1])[0])
        other.leave(2)

    thread = threading.Thread(target=share_and_leave)
    thread.start()
    shared.append(first.share(NODES[0])[0])
    first.leave(2)
    thread.join()

    assert shared == [[NODES[0], NODES[1], None]] * 2


def test_late_rank_and_lost_node_0_raise_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(node_program, "SECONDS_FOR_NODE_0", 0.1)
    store = torch_distributed.HashStore()
    late = StoreExchange(store, 1, 2)

    with pytest.raises(NotCompared, match="node 0 does not answer within"):
        late.share(NODES[1])
    store.set("NodeFacts", "[0.0, [null, null]]")
    with pytest.raises(NotCompared, match="node 0 waited only"):
        late.share(NODES[1])


def test_missing_answer_is_a_finding() -> None:
    """It names the rank, or the host if known; folders are compared on the other nodes."""
    facts = [replace(NODES[0], files=("/work/.file",)), None, NODES[1]]
    ranks, known = compare.first_rank_of_each_node(facts)

    found = list(compare.compare_nodes(facts, known, [NodeFindings(sees=(True,)), None]))

    assert ranks == [0, 2]
    assert [each.found for each in found if each.what == "answers"] == [
        "rank 1: no answer; see its own output",
        "n1: no answer; see its own output",
    ]
    assert "shared folder (/work)" in [each.what for each in found]


def test_first_task_of_each_node_is_compared() -> None:
    assert compare.first_rank_of_each_node([NODES[0], NODES[0], NODES[1], NODES[1]]) == (
        [0, 2],
        [*NODES[:2]],
    )


def test_failed_measurement_gives_reason_and_no_speed() -> None:
    """Clocks of the nodes that answer are compared."""
    fault = NetworkSpeeds(fault="Connection reset by peer")
    found = list(
        compare.compare_measured(
            ("n0", "n1", "n2"),
            "gloo",
            [NodeMeasurements(0.0, NetworkSpeeds()), NodeMeasurements(9.0, fault), None],
        )
    )

    assert [(each.what, each.nodes) for each in found] == [
        ("answers", ("n2",)),
        ("clock", ("n0",)),
        ("clock", ("n1",)),
        ("all_reduce (gloo)", ("n1",)),
    ]
