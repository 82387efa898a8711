"""The plan of a node, as --dry-run and --verbose print it."""

import json
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.job.job import Job, ProgramKind, TaskLayout, WorkerProgram
from clusterrun.job.options import NumaBinding
from clusterrun.job.redaction import REDACTED
from clusterrun.planning.plan import MemoryPolicy, NodePlan, WorkerPlan, assumed_world
from clusterrun.report.plan import PlanView, describe_prepared, describe_start, dry_run_text
from clusterrun.workers.fork_server.messages import Prepared
from msgspec import to_builtins
from msgspec.structs import replace

from tests.plans import gpu, job, worker_of, world

JOB = job(env={"LR": "0.1"}, numa_binding=NumaBinding.NODE)


def worker(rank: int, cpus: str | None = None, warning: str = "") -> WorkerPlan:
    """Return a worker with two variables; it is bound if it has CPUs."""
    return WorkerPlan(
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank),
        gpus=(gpu(7 - rank, 1),),
        numa_nodes=() if cpus is None else (1,),
        cpus=None if cpus is None else CpuSet.parse(cpus),
        memory=None,
        env={"RANK": str(rank), "LOCAL_RANK": str(rank)},
        warning=warning,
        command=("python", "-u", "train.py", "--lr", "1"),
        runs_python=True,
    )


def plan(*workers: WorkerPlan, **changes: Any) -> NodePlan:
    usual: dict[str, Any] = {
        "world": world(len(workers), master_port=None),
        "host": "node7",
        "env": {"OMP_NUM_THREADS": "4", "LR": "0.1"},
        "unset": (),
        "workers": workers,
        "warnings": (),
        "visible_origin": "CUDA_VISIBLE_DEVICES=7,6",
    }
    return NodePlan(**(usual | changes))


def decoded(spec: Job, what: NodePlan) -> Any:
    return json.loads(json.dumps(to_builtins(PlanView.of(spec, what))))


ROWS = [
    "script          train.py             default",
    "args            --lr 1               default",
    "nnodes          1                    default",
    "master_port     chosen at the start  default",
    "rdzv_timeout    600.0                default",
    "no_fail_fast    no                   default",
    "numa_binding    node                 the test",
    "ranks           none                 default",
    "env             LR=0.1               --env",
    "token           none                 default",
]
"""The rows of some options."""


def test_dry_run_text() -> None:
    """Each value has its origin."""
    unbound = worker(1, warning="not bound: nothing tells its node")
    what = plan(worker(0, "0-3,8-11"), unbound, unset=("RANK",), warnings=("few CPUs",))

    options, _, rest = dry_run_text(JOB, what).partition("\n\n")

    title, *lines = options.splitlines()
    rows = [re.split("  +", line.strip()) for line in lines]
    expected = [re.split("  +", row) for row in ROWS]
    assert title == "job"
    assert [row for row in rows if row in expected] == expected
    # They are aligned: the last column begins at the same place.
    assert len({line.rindex(row[-1]) for line, row in zip(lines, rows, strict=True)}) == 1
    assert f"{rest}\n" == dedent(
        """\
        workers of node7, node 0 of 1, GPUs by CUDA_VISIBLE_DEVICES=7,6
          rank  local  GPU  address       node  CPUs       OMP_NUM_THREADS  node by
          0     0      7    0000:80:00.0  1     0-3,8-11   4                sysfs numa_node
          1     1      6    0000:70:00.0  -     not bound  4                sysfs numa_node

        variables of every worker
          LR               0.1  --env
          OMP_NUM_THREADS  4    clusterrun

        variables of rank 0
          LOCAL_RANK   0
          MASTER_PORT  chosen at the start
          RANK         0

        variables that no worker inherits
          RANK

        remarks
          few CPUs
          rank 1: not bound: nothing tells its node

        command
          python -u train.py --lr 1
        """
    )


def test_secrets_in_variables_are_redacted() -> None:
    """In all places that show a variable."""
    secret = {"API_TOKEN": "hush", "DATA": "https://me:hush@store/?sig=hush"}
    described, planned = job(env=secret), plan(worker(0), env=secret)

    text, data = dry_run_text(described, planned), decoded(described, planned)

    assert "hush" not in text + json.dumps(data)
    assert text.count(f"https://{REDACTED}@store/?sig={REDACTED}") == 2
    shown = {"API_TOKEN": REDACTED, "DATA": f"https://{REDACTED}@store/?sig={REDACTED}"}
    assert data["job"]["env"]["value"] == shown
    assert data["workers"][0]["env"] == {
        **shown,
        "LOCAL_RANK": "0",
        "MASTER_PORT": None,
        "RANK": "0",
    }


def test_value_with_line_feed_is_one_line() -> None:
    """Control characters are escaped, and the command can be pasted."""
    odd = replace(worker(0), command=("python", "a\n\x1b[1m"))

    text = dry_run_text(job(env={"LR": "1\n2\u202e"}), plan(odd, warnings=("a\x07",)))

    assert text.replace("\n", "").isprintable()
    assert r"LR=1\n2\u202e" in text
    assert text.endswith(r"python $'a\012\033[1m'")


def test_long_value_is_not_cut() -> None:
    long = ",".join(str(cpu) for cpu in range(0, 512, 2))

    assert long in dry_run_text(JOB, plan(worker(0, long)))


def test_worker_table_without_gpus() -> None:
    alone = worker_of(0)

    text = dry_run_text(JOB, plan(alone, env={}, visible_origin=""))

    assert "workers of node7, node 0 of 1\n" in text
    assert "  0     0      -    -        -     not bound  inherited        -\n" in text


def test_dry_run_json() -> None:
    """Programs depend on these keys."""
    found = decoded(JOB, plan(worker(0, "0-3,8-11")))

    assert set(found) == {"job", "workers", "assumed", "remarks"}
    assert found["assumed"] is False
    assert found["workers"] == [
        {
            "rank": 0,
            "local_rank": 0,
            "gpu": 7,
            "gpus": [
                {
                    "index": 7,
                    "address": "0000:80:00.0",
                    "uuid": "GPU-7",
                    "numa_node": 1,
                    "told_by": "sysfs numa_node",
                }
            ],
            "numa_node": 1,
            "numa_nodes": [1],
            "cpus": "0-3,8-11",
            "memory": None,
            "env": {
                "OMP_NUM_THREADS": "4",
                "LR": "0.1",
                "RANK": "0",
                "LOCAL_RANK": "0",
                "MASTER_PORT": None,
            },
            "command": ["python", "-u", "train.py", "--lr", "1"],
            "remark": "",
        }
    ]


def test_worker_with_several_gpus_and_memory_policy() -> None:
    """Each GPU is listed. The column memory is shown if a worker has a policy."""
    both = replace(
        worker(0, "0-7"),
        gpus=(gpu(0, 0), gpu(1, 1)),
        numa_nodes=(0, 1),
        memory=MemoryPolicy("bind", (0, 1)),
    )

    text = dry_run_text(JOB, plan(both, worker(1)))
    found, other = decoded(JOB, plan(both, worker(1)))["workers"]

    assert (
        "  rank  local  GPU  address                    node  CPUs       OMP_NUM_THREADS  memory"
        "    node by\n"
        "  0     0      0,1  0000:10:00.0,0000:20:00.0  0,1   0-7        4                bind 0,1"
        "  sysfs numa_node\n"
    ) in text
    assert [found["gpu"], found["numa_node"], found["numa_nodes"]] == [None, None, [0, 1]]
    assert [each["index"] for each in found["gpus"]] == [0, 1]
    assert found["memory"] == {"mode": "bind", "numa_nodes": [0, 1]}
    assert other["memory"] is None


def test_json_of_unbound_worker() -> None:
    alone = worker_of(0, warning="why", env={"MASTER_PORT": "9"})

    (found,) = decoded(JOB, plan(alone))["workers"]

    assert (found["gpu"], found["numa_node"], found["cpus"]) == (None, None, None)
    assert (found["remark"], found["env"]["MASTER_PORT"]) == ("why", "9")


MODULE = WorkerProgram(ProgramKind.MODULE, "pkg.train", ())
EXECUTABLE = WorkerProgram(ProgramKind.EXECUTABLE, "run.sh", ())
RUN_PATH = WorkerProgram(ProgramKind.RUN_PATH, "folder", ())
TASK = TaskLayout(GlobalRank(3), 4, LocalRank(1), 2, NodeRank(1), 2)


@pytest.mark.parametrize(
    ("values", "name", "value", "row"),
    [
        ({}, "master_addr", "127.0.0.1", "master_addr 127.0.0.1 default"),
        ({}, "tasks", None, ""),
        ({"script": MODULE}, "module", "pkg.train", "module pkg.train the test"),
        ({"script": EXECUTABLE}, "script", "run.sh", "script run.sh the test"),
        ({"script": EXECUTABLE, "no_python": True}, "no_python", True, "no_python yes the test"),
        ({"script": RUN_PATH, "run_path": True}, "run_path", True, "run_path yes the test"),
        ({"hosts": ("n0", "n1")}, "hosts", ["n0", "n1"], "hosts n0 n1 the test"),
        ({"port_candidates": (1, 2)}, "port_candidates", [1, 2], "port_candidates 1 2 the test"),
        ({"port_candidates": (1, 2)}, "master_port", None, "master_port the first free default"),
        ({"tasks": TASK}, "tasks", to_builtins(TASK), "tasks 3 of 4, on this node 1 of 2 the test"),
        ({"token": "hush"}, "token", "given", "token given the test"),
    ],
)
def test_value_of_a_job(values: dict[str, Any], name: str, value: object, row: str) -> None:
    """In the JSON and in the text, which has it only if it is known; a token is not shown."""
    spec = job(**values)

    text, data = dry_run_text(spec, plan(worker(0))), decoded(spec, plan(worker(0)))

    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert data["job"][name]["value"] == value
    assert [line for line in rows if line.startswith(f"{name} ")] == ([row] if row else [])
    assert ("script" in data["job"]) is (values.get("script") is not MODULE)
    assert "hush" not in text + json.dumps(data)


def test_env_with_two_origins() -> None:
    origins = {"env.A": "job.yaml:3 env", "env.B": "--env"}
    spec = replace(job(env={"A": "1", "B": "2"}), origins=origins)

    assert decoded(spec, plan(worker(0)))["job"]["env"]["origin"] == "job.yaml:3 env, --env"


def test_program_with_several_origins() -> None:
    origins = {"script": "job.yaml:1 script", "no_python": "--no-python", "args": "job.yaml:3 args"}
    spec = replace(job(script=EXECUTABLE), origins=origins)

    values = decoded(spec, plan(worker(0)))["job"]

    assert {name: values[name]["origin"] for name in origins} == origins


def test_ras_port_is_chosen_at_the_start() -> None:
    """Like MASTER_PORT. The plan of a running job has the port."""
    planned = replace(worker(0), needs_ras_port=True)
    running = replace(planned, env={"NCCL_RAS_ADDR": "127.0.0.1:4000"})
    environments = [
        decoded(JOB, plan(each))["workers"][0]["env"] for each in (worker(0), planned, running)
    ]

    assert "NCCL_RAS_ADDR  chosen at the start" in dry_run_text(JOB, plan(planned))
    assert "NCCL_RAS_ADDR" not in dry_run_text(JOB, plan(worker(0)))
    assert "NCCL_RAS_ADDR" not in environments[0]
    assert environments[1]["NCCL_RAS_ADDR"] is None
    assert environments[2]["NCCL_RAS_ADDR"] == "127.0.0.1:4000"


def test_other_nodes_are_assumed_alike() -> None:
    """A dry run does not contact other nodes."""
    spec = job(nnodes=2, node_rank=1, master_addr="a")

    found = decoded(spec, plan(worker(0), world=assumed_world(spec, 1)))

    assert found["assumed"] is True


def test_local_rank_of_a_task() -> None:
    """The only worker of a task has index 0, but another LOCAL_RANK."""
    third = replace(worker(0), env={"LOCAL_RANK": "2"}, local_rank_reason="why", warning="alas")

    (found,) = decoded(JOB, plan(third))["workers"]

    assert (found["local_rank"], found["remark"]) == (2, "why; alas")
    assert "  0     2      7 " in dry_run_text(JOB, plan(third))


BOUND = worker_of(0, gpus=(gpu(3, 1),), numa_nodes=(1,), cpus=CpuSet.parse("0-3,8"))


def started(interface: str = "") -> NodePlan:
    return plan(BOUND, worker_of(1), world=replace(world(2), interface=interface))


def test_describe_start() -> None:
    first, *others = describe_start(started())

    assert first == (
        "run run, attempt 0: 2 of 2 workers on node7, node 0 of 1;"
        " master address 127.0.0.1, port 29500"
    )
    assert others == [
        f"rank 0: GPU 3 ({gpu(3, 1).bdf}), CPUs 0-3,8 of NUMA node 1",
        "rank 1: no GPU, all CPUs",
    ]


def test_start_names_numa_balancing_and_network_interface() -> None:
    usual = describe_start(started())

    (moved,) = set(describe_start(started(), moves_pages=True)) - set(usual)

    assert moved.startswith("kernel.numa_balancing is on")
    assert "gloo, NCCL and TensorPipe use the network interface eth0" in describe_start(
        started("eth0")
    )


def test_slow_imports_are_named() -> None:
    """The others are counted."""
    loaded = (("json", 0.001), ("slow", 0.213), ("hazard", 0.0))
    prepared = Prepared(None, must_warn=False, costs_time=False, loaded=loaded)

    assert [*describe_prepared(prepared, 2, verbose=True)] == [
        "workers are forked; preloaded: slow (0.21 s), 2 that took no time"
    ]


SETS = "train.py:2 sets OMP_NUM_THREADS before torch is imported"


TORCH: Mapping[str, Any] = {
    "not_preloaded": "torch",
    "why_not_preloaded": SETS,
    "preload_option_helps": True,
}
NUMPY: Mapping[str, Any] = {
    "not_preloaded": "numpy",
    "why_not_preloaded": "importing numpy raised ValueError",
}
EIGHT_TIMES = (
    f"{SETS}, so each of 8 workers imports torch itself; to import it once: --preload torch"
)
TWICE = "importing numpy raised ValueError, so each of 2 workers imports numpy itself"
SPAWNED = (
    "workers are spawned: LD_PRELOAD is set; all 2 import separately what could be imported once"
    " (docs/binding.md)"
)


@pytest.mark.parametrize(
    ("why_spawned", "workers", "imports", "lines"),
    [
        (SETS, 8, TORCH, [EIGHT_TIMES]),
        ("", 8, TORCH, [EIGHT_TIMES]),
        ("", 1, TORCH, []),
        ("", 2, NUMPY, [TWICE]),
        ("LD_PRELOAD is set", 2, {}, [SPAWNED]),
    ],
)
def test_workers_that_import_by_themselves(
    why_spawned: str, workers: int, imports: Mapping[str, Any], lines: list[str]
) -> None:
    """The line has the reason, and the option if that helps. A single worker has no line."""
    prepared = Prepared(why_spawned, must_warn=False, costs_time=True, **imports)

    assert [*describe_prepared(prepared, workers, verbose=False)] == lines


def test_dry_run_json_has_warnings_of_the_node() -> None:
    found = decoded(JOB, plan(worker(0), warnings=("too few CPUs",)))

    assert found["remarks"] == ["too few CPUs"]
