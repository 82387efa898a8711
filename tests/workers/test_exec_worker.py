"""The trial of a binding in a child process, and the binding itself."""

import os
import signal
from typing import Any

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.planning.plan import MemoryPolicy, NodePlan
from clusterrun.workers import fork_server
from clusterrun.workers.exec_worker import binding_failures
from msgspec.structs import replace

from tests.imports import output_of
from tests.plans import plan_of, worker_of


def test_each_worker_that_cannot_be_bound_has_a_line() -> None:
    """This process is not bound."""
    before = os.sched_getaffinity(0)
    last = max(before)
    plan = replace(
        plan_of(4),
        workers=(
            worker_of(0, cpus=CpuSet({last})),
            worker_of(1, cpus=CpuSet({last, 1000})),
            worker_of(2, memory=MemoryPolicy("bind", (1000,))),
            worker_of(3, cpus=CpuSet(before)),
        ),
    )

    first, second = binding_failures(plan)

    assert first == f"local rank 1: asked for CPUs {CpuSet({last, 1000})}, got {last}"
    assert second.startswith("local rank 2: no memory policy, bind 1000: ")
    assert os.sched_getaffinity(0) == before


class SignalsItself:
    """A worker that signals the process that tries to bind it."""

    local_rank = 0
    cpus = None

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def memory(self) -> None:
        os.kill(os.getpid(), self.number)


def plan_with_signal(number: int) -> NodePlan:
    worker: Any = SignalsItself(number)
    return replace(plan_of(1), workers=(worker,))


def test_signal_to_the_child_does_not_reach_this_process() -> None:
    """The child has the agent's handlers and wake-up descriptor, and must not use them."""
    inbox, wakeup = os.pipe2(os.O_NONBLOCK)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(wakeup)
    try:
        failures = binding_failures(plan_with_signal(signal.SIGUSR1))
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
    received = os.read(inbox, 100)
    for descriptor in (inbox, wakeup):
        os.close(descriptor)

    assert failures == []
    assert [number for number in received if number == signal.SIGUSR1] == [signal.SIGUSR1]


def test_killed_child_is_a_failure() -> None:
    failures = binding_failures(plan_with_signal(signal.SIGKILL))

    assert failures == ["the process that tried it was killed by SIGKILL"]


def test_bind_in_a_process_without_psutil() -> None:
    """Psutil looks for itself among the modules, where ``bind`` has to leave it."""
    code = (
        f"import os; from {fork_server.__name__}.binding import bind;"
        " print([bind([min(os.sched_getaffinity(0))]), len(os.sched_getaffinity(0))])"
    )

    assert output_of(code) == "[None, 1]\n"


@pytest.mark.parametrize(
    ("cpus", "by"), [([0], "psutil"), ([0, 1023], "psutil"), ([0, 1024], "os"), ([0, 4000], "os")]
)
def test_cpus_from_1024_on_are_bound_without_psutil(cpus: list[int], by: str) -> None:
    """Psutil ignores them silently; the resulting mask is read back."""
    code = f"""
import os
from {fork_server.__name__} import binding
calls = []
set_by_os = os.sched_setaffinity
os.sched_setaffinity = lambda pid, cpus: (calls.append("os"), set_by_os(pid, cpus))
import psutil
set_by_psutil = psutil.Process.cpu_affinity
psutil.Process.cpu_affinity = lambda self, cpus: (calls.append("psutil"), set_by_psutil(self, cpus))
binding.must_be_bound = lambda cpus: True
print(binding.bind({cpus}), calls)
"""

    warning = None if cpus == [0] else f"asked for CPUs 0,{cpus[1]}, got 0"
    assert output_of(code) == f"{warning} ['{by}']\n"


def test_offline_cpus_that_the_kernel_lists_as_allowed_give_no_warning() -> None:
    """Outside a cpuset, Cpus_allowed_list has all possible CPUs, and sched_getaffinity those online."""
    code = f"""
import os
from {fork_server.__name__} import kernel
kernel.text_of = lambda path: "Cpus_allowed_list:\\t0-1023\\n"
from {fork_server.__name__}.binding import bind
every = sorted(os.sched_getaffinity(0))
print(bind(every), bind(every[:1]), bind(every))
"""

    assert output_of(code) == "None None None\n"
