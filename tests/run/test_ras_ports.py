"""Ports of NCCL's RAS: each worker has its own, and no other program gets it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import create_autospec

import pytest
from clusterrun.planning.plan import NodePlan
from clusterrun.planning.worker_slots import worker_slots_for
from clusterrun.run.attempts import JobAttempts, JobProgress
from clusterrun.run.node import LocalNode
from clusterrun.run.ras_ports import RasPorts
from clusterrun.workers.node_workers import NodeWorkers
from clusterrun.workers.relay.client import RelayClient
from msgspec.structs import replace

from tests.as_another_user import run_as_another_user
from tests.plans import job, machine, plan_of, world

BIND = """
import socket, sys
here = socket.socket()
if sys.argv[2] == "as NCCL":
    here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
here.bind(("127.0.0.1", int(sys.argv[1])))
here.listen()
print("listens", flush=True)
client, _ = here.accept()
client.sendall(b"SERVER PROTOCOL 2\\n")
"""
"""What NCCL does (``rasClientInitSocket`` in src/ras/client_support.cc)."""


@pytest.fixture
def ports() -> Iterator[RasPorts]:
    reserved = RasPorts()
    yield reserved
    reserved.release()


def with_gpus(workers: int, without: int = 0) -> NodePlan:
    """Return a plan whose last workers, ``without``, need no port."""
    plan = plan_of(workers + without)
    needing = [replace(each, needs_ras_port=True) for each in plan.workers[:workers]]
    return replace(plan, workers=(*needing, *plan.workers[workers:]))


def addresses(plan: NodePlan) -> list[str]:
    return [worker.env["NCCL_RAS_ADDR"] for worker in plan.workers if worker.needs_ras_port]


def port_of(address: str) -> int:
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.1"
    return int(port)


def test_each_gpu_worker_gets_its_own_port(ports: RasPorts) -> None:
    """Workers that need none get none; the rest of the plan is unchanged."""
    planned = with_gpus(4, without=1)
    found = ports.with_addresses(planned)

    assert len(set(addresses(found))) == 4
    assert "NCCL_RAS_ADDR" not in found.workers[4].env
    assert "NCCL_RAS_ADDR" not in planned.workers[0].env
    assert replace(found, workers=planned.workers) == planned


def test_next_attempt_gets_different_ports(ports: RasPorts) -> None:
    """A process of the previous attempt may still listen at its port, and must not answer for the new ranks."""
    first = ports.with_addresses(with_gpus(20))
    left = socket.create_server(("127.0.0.1", port_of(addresses(first)[0])), reuse_port=True)

    with left:
        second = ports.with_addresses(with_gpus(20))
        third = ports.with_addresses(with_gpus(20))

    assert not set(addresses(first)) & set(addresses(second))
    assert addresses(first)[0] not in addresses(third)


def test_jobs_of_one_user_get_different_ports(ports: RasPorts) -> None:
    """The kernel does not choose a port of another process, although both set SO_REUSEPORT."""
    others = RasPorts()
    both = [*addresses(ports.with_addresses(with_gpus(200)))]
    both += addresses(others.with_addresses(with_gpus(200)))
    others.release()

    assert len(set(both)) == 400


def test_worker_gets_the_connections(ports: RasPorts) -> None:
    """The agent has the port bound but does not listen."""
    (address,) = addresses(ports.with_addresses(with_gpus(1)))
    where = ("127.0.0.1", port_of(address))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, 5)

    with subprocess.Popen(
        [sys.executable, "-c", BIND, str(where[1]), "as NCCL"], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"listens\n"
        with socket.create_connection(where, 5) as client:
            assert client.recv(100) == b"SERVER PROTOCOL 2\n"
        assert worker.wait(20) == 0


@pytest.mark.needs("root")
@pytest.mark.parametrize("how", ["as NCCL", "plainly"])
def test_other_user_can_not_bind_the_port(ports: RasPorts, how: str) -> None:
    (address,) = addresses(ports.with_addresses(with_gpus(1)))

    tried = run_as_another_user(BIND, str(port_of(address)), how)

    assert "Address already in use" in tried.stderr
    assert tried.stdout == ""


def test_job_continues_without_a_port(ports: RasPorts, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL then listens at its default port."""

    def fails(*_: object) -> socket.socket:
        raise OSError

    monkeypatch.setattr(socket, "socket", fails)

    assert ports.with_addresses(with_gpus(2)) == with_gpus(2)


def test_each_attempt_of_a_job_gets_ports() -> None:
    """On a node with NVIDIA GPUs; they are released at the end."""
    node = machine({0: "0-7"}, [0, 0])
    here = LocalNode(job(), (), {}, {}, node, worker_slots_for(job(), node, 2))
    workers = create_autospec(NodeWorkers, instance=True, error_files="/e", foreground=False)
    relay = create_autospec(RelayClient, instance=True)
    attempts = JobAttempts(here, workers, relay, JobProgress(0.0))

    first, second = (attempts.begin(world(2, attempt=number)).plan for number in range(2))
    port = port_of(addresses(second)[0])
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        attempts.close()
        other.bind(("127.0.0.1", port))

    assert len({*addresses(first), *addresses(second)}) == 4
