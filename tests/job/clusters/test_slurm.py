"""Slurm's steps: the place of each task, from environments as Slurm 22.05 really made them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import captured
from tests.job.door import (
    CommandLine,
    Fact,
    Found,
    GlobalRank,
    Launch,
    LocalRank,
    NodeRank,
    TaskLayout,
    ThisProcess,
    UsageError,
    Variables,
    port_candidates,
    step,
)


def place(environ: dict[str, str], cpus: int = 64) -> Found:
    """Return the place of a task that may use so many CPUs."""
    found = is_step(environ, cpus)
    assert found is not None
    return found


def is_step(environ: dict[str, str], cpus: int = 64) -> Found | None:
    """Return the place of a task; None if srun has not started it."""
    process = ThisProcess(host="n0", cpus=cpus, python="python", run_id="chosen")
    return step(Variables(environ), Launch(process, CommandLine({}, ("train.py",))))


def value(fact: Fact[Any] | None) -> Any:
    """Return its value, or None."""
    return fact and fact.value


def layout(name: str) -> TaskLayout:
    """Return the layout of a captured task, which must have one."""
    found = place(captured(name)).tasks
    assert found is not None
    return found.value


def test_one_task_on_each_node() -> None:
    """The task is its node, and each value has its variable as origin."""
    found = place(captured("node.1"))

    assert found == Found(
        nnodes=Fact(2, "SLURM_STEP_NUM_NODES"),
        node_rank=Fact(1, "SLURM_NODEID"),
        hosts=Fact(("n0", "n1"), "SLURM_STEP_NODELIST"),
        nproc_per_node=Fact(2, "SLURM_GPUS_ON_NODE"),
        master_addr=Fact("n0", "SLURM_STEP_NODELIST"),
        ports=Fact(port_candidates(26, 0), "SLURM_JOB_ID, SLURM_STEP_ID"),
        run_id=Fact("26.0", "SLURM_JOB_ID, SLURM_STEP_ID"),
        secret=Fact("26.0", "SLURM_JOB_ID, SLURM_STEP_ID"),
    )


def test_nodes_of_a_heterogeneous_step_have_their_ranks_by_group() -> None:
    """The lists of hosts and of tasks are sorted by name: n0 is the node of the second group."""
    first, last = place(captured("groups.0")), place(captured("groups.2"))
    layouts = [value(first.tasks), value(last.tasks)]

    assert [value(each.hosts) for each in (first, last)] == [("n1", "n0")] * 2
    assert [value(each.master_addr) for each in (first, last)] == ["n1"] * 2
    assert [(it.rank, it.size, it.local_size, it.node_rank) for it in layouts if it] == [
        (0, 3, 2, 0),
        (2, 3, 1, 1),
    ]
    # srun has a port for each group.
    assert first.secret == last.secret == Fact("1.0", "SLURM_JOB_ID, SLURM_STEP_ID")


def test_a_host_of_two_groups() -> None:
    """Which of its ranks is which is not known: the node sees that the list is in another order."""
    both = captured("groups.2") | {"SLURM_JOB_NODELIST_HET_GROUP_0": "n[0-1]"}

    found = place(both)

    assert (found.hosts, found.master_addr) == (None, None)
    assert "this is n0, number 0 of SLURM_STEP_NODELIST" in found.no_address


def test_a_step_of_one_group() -> None:
    """The lists are those of the group, whatever other groups the job has."""
    one = {"SLURM_STEP_NODELIST": "n0", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    one |= {"SLURM_NNODES": "1"}
    found = place(captured("groups.2") | one | {"SLURM_STEP_TASKS_PER_NODE": "1"})

    assert value(found.hosts) == ("n0",)
    assert found.nproc_per_node == Fact(3, "SLURM_GPUS_ON_NODE")


def test_one_task_for_each_gpu() -> None:
    """The clusterrun of such a task has one worker, whatever GPUs the node has."""
    found = place(captured("task.3"))

    expected = TaskLayout(
        rank=GlobalRank(3),
        size=4,
        local_rank=LocalRank(1),
        local_size=2,
        node_rank=NodeRank(1),
        nodes=2,
        own_cpus=True,
        gpus=2,
    )
    assert found.tasks == Fact(expected, "SLURM_STEP_TASKS_PER_NODE")
    assert found.nproc_per_node is None
    assert value(found.nnodes) == 2
    assert value(found.master_addr) == "n0"


@pytest.mark.parametrize(
    ("name", "rank", "local_rank", "local_size", "node_rank"),
    [("uneven.1", 1, 1, 2, 0), ("uneven.2", 2, 0, 1, 1)],
)
def test_nodes_with_different_numbers_of_tasks(
    name: str, rank: int, local_rank: int, local_size: int, node_rank: int
) -> None:
    """Of ``2,1`` the second node's only task knows that the others are tasks, too."""
    found = layout(name)

    assert (found.rank, found.size, found.nodes) == (rank, 3, 2)
    assert (found.local_rank, found.local_size, found.node_rank) == (
        local_rank,
        local_size,
        node_rank,
    )


def test_tasks_dealt_to_the_nodes_in_turn() -> None:
    """With ``-m cyclic`` the second task of node 0 has rank 2."""
    found = layout("cyclic.2")

    assert (found.rank, found.node_rank, found.local_rank) == (2, 0, 1)


def test_tasks_of_one_node_meet_on_the_loopback() -> None:
    """No other node has to reach them, and the node's name need not resolve."""
    found = place(captured("shared.1"))

    assert value(found.nnodes) == 1
    assert value(found.tasks) is not None
    assert found.master_addr == Fact("127.0.0.1", "SLURM_STEP_NODELIST")


def test_the_node_of_rank_0_is_unknown_if_tasks_are_placed_by_hand() -> None:
    """The list of hosts is sorted: here rank 0 is on n2, and n0 stands first."""
    one_each = place(captured("arbitrary.0"))
    two_each = captured("arbitrary.0") | {
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_DISTRIBUTION": "arbitrary",
    }

    assert (value(one_each.node_rank), value(one_each.master_addr)) == (1, "n0")
    assert value(place(two_each).master_addr) is None
    assert place(two_each).no_address == (
        "SLURM_DISTRIBUTION is arbitrary, and rank 0 may be on any of SLURM_STEP_NODELIST"
    )


@pytest.mark.parametrize("node", [0, 2])
def test_nodes_that_are_numbered_in_another_order_than_listed(node: int) -> None:
    """As a newer Slurm does by the topology: the first of the list is not node 0."""
    hosts = {0: "n2", 1: "n1", 2: "n0"}
    step = captured("node.1") | {
        "SLURM_STEP_NODELIST": "n[0-2]",
        "SLURM_NNODES": "3",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
        "SLURMD_NODENAME": hosts[node],
        "SLURM_NODEID": str(node),
    }

    found = place(step)

    assert value(found.node_rank) == node
    assert (found.hosts, found.master_addr) == (None, None)
    assert found.no_address == (
        f"this is {hosts[node]}, number {2 - node} of SLURM_STEP_NODELIST, counted from 0,"
        f" but SLURM_NODEID is {node}"
    )


def test_a_step_on_part_of_the_allocation() -> None:
    """The step's variables count, not those of the job with its three nodes."""
    part, rest = place(captured("part.1")), place(captured("rest.0"))

    assert (value(part.nnodes), value(part.node_rank)) == (2, 1)
    assert value(part.hosts) == ("n0", "n1")
    assert (value(rest.nnodes), value(rest.node_rank)) == (1, 0)
    assert value(rest.hosts) == ("n2",)


def test_two_steps_of_one_job_at_once() -> None:
    """They have different names and different ports."""
    part, rest = place(captured("part.1")), place(captured("rest.0"))

    assert part.run_id is not None
    assert rest.run_id is not None
    assert value(part.run_id) != value(rest.run_id)
    assert value(part.ports)[0] != value(rest.ports)[0]


def test_variables_of_the_job_where_the_step_has_none() -> None:
    """As Slurm before 14.11 had it, or a container that lets only some through."""
    environ = {
        "SLURM_JOBID": "7",
        "SLURM_STEPID": "1",
        "SLURM_NNODES": "2",
        "SLURM_NODELIST": "gpu[08-09]",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "1",
    }

    found = place(environ)

    assert found.nnodes == Fact(2, "SLURM_NNODES")
    assert found.hosts == Fact(("gpu08", "gpu09"), "SLURM_NODELIST")
    assert found.run_id == Fact("7.1", "SLURM_JOBID, SLURM_STEPID")
    assert value(found.tasks) is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", 2),
        ("GPU-1,GPU-2", 2),
        (None, 2),
        ("1", None),
        ("", None),
    ],
)
def test_slurm_counts_gpus_unless_cuda_visible_devices_differs(
    visible: str | None, expected: int | None
) -> None:
    """If CUDA_VISIBLE_DEVICES has another number of entries, the GPUs of the machine count."""
    environ = {k: v for k, v in captured("node.0").items() if k != "CUDA_VISIBLE_DEVICES"}
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    found = place(environ | chosen).nproc_per_node

    assert value(found) == expected


@pytest.mark.parametrize(
    ("kind", "masks", "own"),
    [
        ("mask_cpu:", "0x1,0x2", True),
        ("mask_cpu:", "0xF0,0x0F", True),
        ("mask_cpu:", "0x3,0x3", False),
        ("mask_cpu:", "0x3,0x2", False),
        ("none", "", False),
        ("map_cpu:", "0,1", False),
        ("mask_cpu:", "0x1", False),
        ("mask_cpu:", "odd,even", False),
    ],
)
def test_cpus_of_its_own(kind: str, masks: str, own: bool) -> None:
    """A task's mask must be known, and share no CPU with others on its node."""
    environ = captured("task.3") | {"SLURM_CPU_BIND_TYPE": kind, "SLURM_CPU_BIND_LIST": masks}

    found = value(place(environ).tasks)

    assert found is not None
    assert found.own_cpus is own


@pytest.mark.parametrize(
    ("changes", "cpus", "share"),
    [
        ({"SLURM_CPUS_ON_NODE": "64"}, 1, 64),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "64"}, 2, 64),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 8, 16),
        ({"SLURM_CPUS_ON_NODE": "64"}, 64, 0),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "8"}, 8, 0),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_PROCID": "1"}, 1, 0),
        ({"SLURM_CPUS_ON_NODE": ""}, 1, 0),
    ],
)
def test_srun_without_its_share_of_cpus(changes: dict[str, str], cpus: int, share: int) -> None:
    """The first task warns and names the option; sbatch's own ``-c`` is inherited, but ignored."""
    found = place(captured("node.0") | changes, cpus).warnings

    assert [warning.rpartition("srun ")[2] for warning in found] == ([f"-c {share}"] * bool(share))


def test_the_text_of_the_warning() -> None:
    """What is wrong, by which variable, and what to type."""
    found = place(captured("node.0") | {"SLURM_CPUS_ON_NODE": "64"}, cpus=1)

    assert found.warnings == (
        (
            "srun bound this task to 1 of the 64 CPUs that it could have (SLURM_CPUS_ON_NODE):"
            " type srun -c 64"
        ),
    )


@pytest.mark.parametrize("name", ["node.0", "task.3", "in_batch.1", "rest.0", "arbitrary.1"])
def test_what_srun_started_is_a_step(name: str) -> None:
    """In a batch script as well, although its steps inherit ENVIRONMENT=BATCH."""
    assert is_step(captured(name))


@pytest.mark.parametrize(
    "name", ["batch", "batch_of_one", "salloc", "interactive", "batch_from_step"]
)
def test_what_srun_did_not_start_is_none(name: str) -> None:
    """Not even with a step's variables: salloc's own, or left by the step that called sbatch."""
    assert not is_step(captured(name))


@pytest.mark.parametrize(
    ("number", "is_one"),
    [(0xFFFF_FFEF, True), (0xFFFF_FFF0, False), (0xFFFF_FFFB, False), (0xFFFF_FFFF, False)],
)
def test_the_ids_that_slurm_reserves_are_no_steps(number: int, is_one: bool) -> None:
    """Slurm's own header has them: the batch script's, that of a shell on a node, others to come."""
    found = is_step(captured("node.0") | {"SLURM_STEP_ID": str(number)})

    assert bool(found) is is_one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_NODEID": ""}, "SLURM_NODEID is not set"),
        ({"SLURM_NODEID": "first"}, "SLURM_NODEID: 'first' is not a number"),
        (
            {"SLURM_NODEID": "2"},
            (
                "SLURM_NODEID is 2, SLURM_STEP_NUM_NODES is 2 and SLURM_STEP_TASKS_PER_NODE"
                " has 2 entries"
            ),
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"},
            (
                "SLURM_NODEID is 1, SLURM_STEP_NUM_NODES is 2 and SLURM_STEP_TASKS_PER_NODE"
                " has 4 entries"
            ),
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "many"},
            "SLURM_STEP_TASKS_PER_NODE: 'many' is not a list of counts",
        ),
        ({"SLURM_STEP_NODELIST": "n[0-"}, "SLURM_STEP_NODELIST: 'n[0-' is not a list of hosts"),
    ],
)
def test_variables_with_wrong_values(changes: dict[str, str], message: str) -> None:
    """The error names the variable and the way to ignore the cluster."""
    with pytest.raises(UsageError) as caught:
        place(captured("node.1") | changes)

    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_a_list_of_other_hosts_is_none() -> None:
    """Names by rank need one name for each rank."""
    found = place(captured("node.1") | {"SLURM_STEP_NODELIST": "n[0-7]"})

    assert found.hosts is None
    assert value(found.master_addr) is None


@given(job=st.integers(1, 10**7), step=st.integers(0, 500), others=st.integers(1, 500))
def test_ports_of_neighbours_differ(job: int, step: int, others: int) -> None:
    """Steps of one job and of neighbouring jobs begin at different ports."""
    first = port_candidates(job, step)[0]

    assert first != port_candidates(job, step + others)[0]
    assert first != port_candidates(job + 1, step)[0]
    assert first != port_candidates(job + 2, step)[0]


@given(job=st.integers(0, 2**40), step=st.integers(0, 2**32))
def test_ports_are_usable(job: int, step: int) -> None:
    """Not used by the kernel, Kubernetes' services or other launchers; all differ."""
    ports = port_candidates(job, step)

    assert len(set(ports)) == len(ports) == 4
    assert all(20_000 <= port < 29_500 for port in ports)


def test_ports_are_the_same_everywhere() -> None:
    """Nodes compute them apart from each other, with whatever version is installed."""
    assert port_candidates(4711, 3) == (28640, 20996, 22730, 24460)


def test_a_node_without_tasks() -> None:
    """Whatever sets that, it is not srun."""
    environ = captured("node.0") | {"SLURM_STEP_TASKS_PER_NODE": "0(x2)"}

    with pytest.raises(UsageError, match=r"^SLURM_STEP_TASKS_PER_NODE has a node without tasks"):
        place(environ)
