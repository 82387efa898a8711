"""clusterrun as tasks of a real Slurm: ranks, CPUs, errors and exit codes."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.launched import COMMAND, Ended, Launcher
from tests.hosts.slurm import CLUSTERRUN_ON_PATH, Slurm

ROOT = Path(__file__).parent.parent.parent

PER_NODE = ("-N2", "--ntasks-per-node=1", "-c2", "--gres=gpu:2")
"""One task per node, which sees two GPUs and so starts two workers."""

PER_GPU = ("-N2", "--ntasks-per-node=2", "--gpus-per-task=1")


PRINT_VARIABLES = """
import json, os
names = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME", "SLURM_LOCALID", "SLURM_CPU_BIND_LIST",
)
values = {name: os.environ.get(name, "") for name in names}
print(json.dumps({**values, "cpus": sorted(os.sched_getaffinity(0)), "parent": os.getppid()}))
"""

REDUCE = """
import os, torch, torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
rank = distributed.get_rank()
model(torch.full((1, 1), 1.0 + rank)).sum().backward()
total = torch.tensor([1.0 + rank])
distributed.all_reduce(total)
print("rank", rank, "sum", int(total), "mean", next(model.parameters()).grad.item(), flush=True)
distributed.destroy_process_group()
"""

SAVE_ON_SIGTERM = """
import os, signal, time
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("job", os.environ["SLURM_JOB_ID"], flush=True)
while True:
    time.sleep(1)
"""

FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(1000)
"""

ONLY_FIRST_TASK = ("sh", "-c", 'test "$SLURM_PROCID" = 0 || exit 1; exec "$@"', "sh")
"""Words before clusterrun: only the first task starts it."""

both_layouts = pytest.mark.parametrize("layout", [PER_NODE, PER_GPU], ids=["per-node", "per-gpu"])

Variables = dict[str, Any]


def workers_in(out: str) -> list[Variables]:
    """Return what workers with the script ``PRINT_VARIABLES`` printed, by rank."""
    found: list[Variables] = [json.loads(text) for text in re.findall(r"\{.*\}", out)]
    return sorted(found, key=lambda worker: int(worker["RANK"]))


def columns(workers: Sequence[Variables], *names: str) -> list[tuple[Any, ...]]:
    """Return these values of each worker."""
    return [tuple(worker[name] for name in names) for worker in workers]


def script(folder: Path, text: str) -> str:
    """Return the path of a script with this text, for batch scripts to name."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def batch(slurm: Slurm, text: str, *options: str) -> Ended:
    return slurm.ended(slurm.sbatch(text, *options))


ONE_EACH = "-N2 --ntasks-per-node=1"
TWO_EACH = "-N2 --ntasks-per-node=2"

RANKS_OF_TWO_EACH = ["0 4 0 2 0 2 n0", "1 4 1 2 0 2 n0", "2 4 0 2 1 2 n1", "3 4 1 2 1 2 n1"]

IS_SPARE = "clusterrun: this node is a spare: it waits to take the place of a lost node\n"


@pytest.mark.parametrize(
    ("srun", "options", "ranks", "errors"),
    [
        (ONE_EACH, "", ["0 2 0 1 0 2 n0", "1 2 0 1 1 2 n1"], ""),
        # Each task starts as many workers as Slurm gives it GPUs.
        (f"{ONE_EACH} -c2 --gres=gpu:2", "", RANKS_OF_TWO_EACH, None),
        # Nodes may have different numbers of tasks.
        ("-N2 -n3", "", ["0 3 0 2 0 2 n0", "1 3 1 2 0 2 n0", "2 3 0 1 1 2 n1"], None),
        # The last node of the step is the spare. --nnodes counts those that work.
        (ONE_EACH, "--spares 1", ["0 1 0 1 0 1 n0"], IS_SPARE),
        (ONE_EACH, "--nnodes 1 --spares 1", ["0 1 0 1 0 1 n0"], IS_SPARE),
        # One task per GPU, by whatever option, has one worker each.
        *(
            (f"{TWO_EACH} {gpus}", options, RANKS_OF_TWO_EACH, None)
            for gpus in ("--gpus-per-task=1", "--gres=gpu:2", "")
            for options in ("", "--exec")
        ),
    ],
)
def test_ranks_of_step(
    srun: str,
    options: str,
    ranks: list[str],
    *,
    errors: str | None,
    slurm: Slurm,
    clusterrun: Launcher,
) -> None:
    around = slurm.around(*srun.split())

    done = clusterrun.script(PRINT_VARIABLES, *options.split(), around=around).ended()

    assert done.code == 0, done.err
    assert errors in (None, done.err)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    workers = workers_in(done.out)
    found = columns(workers, *names, "GROUP_WORLD_SIZE", "SLURMD_NODENAME")
    assert [" ".join(values) for values in found] == ranks
    assert len(set(columns(workers, "MASTER_ADDR", "MASTER_PORT"))) == 1
    if len(ranks) > 1:
        assert columns(workers, "MASTER_ADDR")[0] == ("n0",)
    if srun.startswith(TWO_EACH):
        assert columns(workers, "SLURM_LOCALID") == columns(workers, "LOCAL_RANK")


KILL_AGENT = """
import os, signal, time
attempt, node = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["SLURMD_NODENAME"]
if attempt == "0" and node == os.environ["LOST"]:
    # The worker's parent is the fork server, whose parent is the agent.
    with open(f"/proc/{os.getppid()}/stat") as file:
        os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
if attempt == "0":
    time.sleep(100)
with open("worlds", "a") as file:
    file.write(f"world {os.environ['WORLD_SIZE']} attempt {attempt} {node}")
"""


@pytest.mark.parametrize("lost", ["n1", "n0"])
def test_elastic_step_survives_loss_of_any_node_but_node_zero(
    slurm: Slurm, clusterrun: Launcher, lost: str
) -> None:
    """After a task was killed, srun drops what it has not printed yet when the last task exits (``client_io_handler_abort``), also into a file: each node writes its own, as %t asks for."""
    errors = clusterrun.folder / "errors"
    step = ("-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", f"--error={errors}.%t")
    job = clusterrun.script(
        KILL_AGENT, "--nnodes=1:4", around=slurm.around(*step), environ={"LOST": lost}
    )
    job.ended(60.0)

    printed = Path(f"{errors}.{int(lost == 'n0')}").read_text()
    if lost == "n1":
        assert (clusterrun.folder / "worlds").read_text() == "world 1 attempt 1 n0", printed
        assert "restarting all workers on 1 node (1 node lost so far)\n" in printed
    else:
        assert not (clusterrun.folder / "worlds").exists()
        assert "clusterrun: exit code 5: node 0 was lost\n" in printed


@pytest.mark.parametrize("option", ["", pytest.param("--run-id=mine", marks=pytest.mark.long)])
def test_srun_inside_worker_is_separate_job(slurm: Slurm, tmp_path: Path, option: str) -> None:
    inner = f"srun --overlap -N2 -n2 {COMMAND} {script(tmp_path, PRINT_VARIABLES)}"
    outer = f"srun --overlap -N1 -n1 {COMMAND} {option} --no-python {inner}"

    done = batch(slurm, f"#!/bin/sh\nexec {outer}\n", "-N2")

    assert done.code == 0, done.err
    assert columns(workers_in(done.out), "RANK", "WORLD_SIZE", "SLURMD_NODENAME") == [
        ("0", "2", "n0"),
        ("1", "2", "n1"),
    ]


def test_output_lines_of_tasks_are_whole_and_prefixed(slurm: Slurm, clusterrun: Launcher) -> None:
    """Without a buffer, print() writes each word by itself."""
    printing = "for number in range(100): print('a', 'line', number)"

    done = clusterrun.script(printing, around=slurm.around(*PER_GPU)).ended()

    lines = [f"[rank {r} n{r // 2}] a line {number}" for r in range(4) for number in range(100)]
    assert sorted(done.out.splitlines()) == sorted(lines), done.err


@pytest.mark.parametrize(
    ("layout", "how"),
    [
        (PER_NODE, ()),
        pytest.param(PER_GPU, (), marks=pytest.mark.long),
        pytest.param(PER_GPU, ("--exec",), marks=pytest.mark.long),
    ],
    ids=["per-node", "per-gpu", "exec"],
)
def test_all_reduce_in_slurm_step(
    slurm: Slurm, clusterrun: Launcher, layout: tuple[str, ...], how: tuple[str, ...]
) -> None:
    done = clusterrun.script(REDUCE, *how, around=slurm.around(*layout)).ended(60)

    assert done.code == 0, done.err
    printed = sorted(re.findall(r"rank \d sum \d+ mean \S+", done.out))
    assert printed == [f"rank {rank} sum 10 mean 2.5" for rank in range(4)]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["node", "gpu"])
def test_batch_scripts_train_to_95_percent(slurm: Slurm, layout: str) -> None:
    text = (ROOT / f"scripts/slurm_one_task_per_{layout}.sh").read_text()
    gpus = "--gpus-per-node=2" if layout == "node" else "--gpus-per-task=1"
    args = (str(ROOT / "scripts/train_digits.py"),)

    job = slurm.sbatch(text, gpus, args=args, environ=CLUSTERRUN_ON_PATH, folder=ROOT)
    printed = slurm.follow(job)
    # Each wait has its own limit: four ranks and their data loaders may have few cores.
    for progress in ("epoch 1/8", "epoch 3/8", "epoch 5/8", "epoch 8/8", "test accuracy"):
        printed.wait_for(progress)
    done = slurm.ended(job)

    assert done.code == 0, done.err
    (accuracy,) = re.findall(r"test accuracy (\S+) %", done.out)
    assert float(accuracy) >= 95


@pytest.mark.parametrize(
    ("layout", "options", "world"),
    [
        ("node", ("--gpus-per-node=2",), 4),
        ("gpu", ("--gpus-per-task=1",), 4),
        ("gpu", ("--ntasks-per-node=1",), 2),
    ],
    ids=str,
)
def test_batch_scripts_use_all_cpus(
    slurm: Slurm, tmp_path: Path, layout: str, options: tuple[str, ...], world: int
) -> None:
    """On exclusive nodes there is no warning and no idle CPU."""
    text = (ROOT / f"scripts/slurm_one_task_per_{layout}.sh").read_text()
    job = slurm.sbatch(
        text, *options, args=(script(tmp_path, PRINT_VARIABLES),), environ=CLUSTERRUN_ON_PATH
    )

    done = slurm.ended(job)

    assert done.code == 0, done.err
    assert "srun" not in done.err
    workers = workers_in(done.out)
    assert columns(workers, "WORLD_SIZE") == [(str(world),)] * world
    assert {cpu for worker in workers for cpu in worker["cpus"]} == {0, 1}


def test_batch_script_in_salloc_runs_srun(slurm: Slurm, tmp_path: Path) -> None:
    wrapper = str(ROOT / "scripts/slurm_one_task_per_node.sh")
    words = ("salloc", "--nodes=2", "--exclusive", wrapper, script(tmp_path, PRINT_VARIABLES))

    done = slurm.start(*words, environ=CLUSTERRUN_ON_PATH).ended()

    assert done.code == 0, done.err
    assert columns(workers_in(done.out), "WORLD_SIZE", "cpus") == [("2", [0, 1])] * 2


def test_exec_replaces_launcher(slurm: Slurm, clusterrun: Launcher) -> None:
    """The worker's parent is slurmstepd."""
    two = ("-N1", "-n2")

    done = clusterrun.script(PRINT_VARIABLES, "--exec", around=slurm.around(*two)).ended()

    parents = columns(workers_in(done.out), "parent")
    assert len(parents) == 2, done.err
    assert len(set(parents)) == 1


def test_concurrent_steps_use_different_ports(slurm: Slurm, tmp_path: Path) -> None:
    path = script(tmp_path, f"{PRINT_VARIABLES}\nimport time; time.sleep(2)")
    step = f"srun -N2 -n2 --overlap {COMMAND} {path}"

    done = batch(slurm, f"#!/bin/sh\n{step} & {step} & wait\n", "-N2")

    assert (done.code, done.err) == (0, "")
    by_port = sorted(workers_in(done.out), key=lambda worker: worker["MASTER_PORT"])
    assert columns(by_port, "RANK", "WORLD_SIZE") == [("0", "2"), ("1", "2")] * 2
    assert len(set(columns(by_port, "MASTER_PORT"))) == 2


def test_arbitrary_distribution(slurm: Slurm, tmp_path: Path) -> None:
    """Nodes with one task each are sorted. Otherwise rank 0 may be on any node."""
    (tmp_path / "train.py").write_text(PRINT_VARIABLES)
    by_hand, command = ("--distribution=arbitrary", "-c1"), (COMMAND, "--nproc-per-node=1")
    given = ("--master-addr", "n1")

    one_each = slurm.srun("-w", "n1,n0", "-n2", *by_hand, *command, "train.py", folder=tmp_path)
    nodes = {"SLURM_HOSTFILE": str(tmp_path / "hosts")}
    (tmp_path / "hosts").write_text("n1\nn0\nn0\nn1\n")
    unset, is_set = (
        slurm.srun("-n4", *by_hand, COMMAND, *options, "train.py", environ=nodes, folder=tmp_path)
        for options in ((), given)
    )

    assert one_each.code == 0, one_each.err
    assert {each["MASTER_ADDR"] for each in workers_in(one_each.out)} == {"n0"}
    assert unset.code == 2
    assert "SLURM_DISTRIBUTION is arbitrary, and rank 0 may be on any of SLURM_STEP_" in unset.err
    assert is_set.code == 0, is_set.err
    assert [each["SLURMD_NODENAME"] for each in workers_in(is_set.out)] == ["n1", "n0", "n0", "n1"]


def test_step_has_token(slurm: Slurm, tmp_path: Path) -> None:
    """A mismatch between tasks ends the step at once; a node without the token is refused alone."""
    without_token = f"{COMMAND} --nnodes 2 --node-rank 1 --master-addr n0 --no-python true"
    line = f"""
        if [ "$SLURM_PROCID" = 1 ]; then
            env -i PATH="$PATH" {without_token} --cluster none --master-port 29500
            echo "without token: $?" >&2
        fi
        CLUSTERRUN_MAX_RESTARTS=$SLURM_PROCID MASTER_PORT=29500 exec {COMMAND} --no-python true
    """

    done = slurm.srun("-N2", "--ntasks-per-node=1", "sh", "-c", line, folder=tmp_path)

    mismatch = "clusterrun: error: max_restarts is 0 on n0, 1 on n1\n"
    assert done.code == 4, done.err
    assert done.err.count(mismatch) == 2
    assert "the job at n0:29500 has a token, but this node has none\n" in done.err
    assert "without token: 4\n" in done.err


@pytest.mark.parametrize(
    ("tasks", "errors"),
    [
        (1, ["1 of 2 nodes joined within 2 s: n0; missing: n1"]),
        (
            2,
            [
                "1 of 4 tasks joined within 2 s: n0; missing: tasks 1-3\n",
                "  start all tasks at once:\n    srun -n 4 clusterrun ...\n",
            ],
        ),
    ],
)
def test_missing_tasks_are_named(
    tasks: int, errors: list[str], slurm: Slurm, tmp_path: Path
) -> None:
    """By the host name, if each node has one task."""
    command = (COMMAND, "--rdzv-timeout", "2", script(tmp_path, PRINT_VARIABLES))

    done = slurm.srun("-N2", f"--ntasks-per-node={tasks}", *ONLY_FIRST_TASK, *command)

    assert (done.code, done.out) == (4, "")
    assert [text for text in errors if text not in done.err] == []


@pytest.mark.parametrize("option", [("--standalone",), ("--nnodes", "1")])
def test_hint_in_salloc_shell_runs_on_nodes(
    slurm: Slurm, tmp_path: Path, option: tuple[str, ...]
) -> None:
    """The shell of salloc is not on one of the nodes."""
    salloc, name = ("salloc", "--nodes=2", "--exclusive"), script(tmp_path, PRINT_VARIABLES)

    alone = slurm.start(*salloc, COMMAND, *option, name, environ=CLUSTERRUN_ON_PATH).ended()
    (line,) = re.findall(r"but this shell runs on ctl; to run on them: (.*)", alone.err)
    there = slurm.start(*salloc, "sh", "-c", line, environ=CLUSTERRUN_ON_PATH).ended()

    names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME")
    assert columns(workers_in(alone.out), *names) == [("0", "1", "")]
    assert columns(workers_in(there.out), *names) == [("0", "2", "n0"), ("1", "2", "n1")], there.err


def test_step_with_fewer_cpus_than_its_node_is_a_warning(slurm: Slurm, tmp_path: Path) -> None:
    step = f"srun -N2 -n2 --cpu-bind=cores {COMMAND} {script(tmp_path, PRINT_VARIABLES)}"

    done = batch(slurm, f"#!/bin/sh\nexec {step}\n", "-N2", "--exclusive", "--ntasks-per-node=1")

    assert done.code == 0, done.err
    assert [len(worker["cpus"]) for worker in workers_in(done.out)] == [1, 1]
    assert done.err.count("run srun -c 2") == 1


def test_more_workers_than_cpus_are_a_warning(slurm: Slurm, clusterrun: Launcher) -> None:
    """There are two GPUs; srun without -c requests one CPU."""
    around = slurm.around("-N1", "--ntasks-per-node=1", "--gres=gpu:2")

    done = clusterrun.script(PRINT_VARIABLES, around=around).ended()

    (cpu,), (same,) = (worker["cpus"] for worker in workers_in(done.out))
    assert cpu == same, done.err
    assert f"2 workers share 1 CPU ({cpu})" in done.err
    assert "add -c to srun" in done.err


def test_workers_keep_cpus_of_their_task(slurm: Slurm, clusterrun: Launcher) -> None:
    done = clusterrun.script(PRINT_VARIABLES, around=slurm.around(*PER_GPU)).ended()

    workers = workers_in(done.out)
    assert columns(workers, "SLURM_CPU_BIND_LIST") == [("0x1,0x2",)] * 4, done.err
    assert columns(workers, "cpus") == [([0],), ([1],), ([0],), ([1],)]


@both_layouts
def test_srun_has_exit_code_of_failed_worker(
    slurm: Slurm, clusterrun: Launcher, layout: tuple[str, ...]
) -> None:
    done = clusterrun.script(FAIL, around=slurm.around(*layout)).ended()

    assert done.code == 7, done.err
    assert "rank 1 on n0 failed" in done.err


@both_layouts
def test_scancel_lets_workers_save(
    slurm: Slurm, clusterrun: Launcher, layout: tuple[str, ...]
) -> None:
    """Everything has ended before Slurm sends SIGKILL ten seconds later."""
    job = clusterrun.script(SAVE_ON_SIGTERM, around=slurm.around(*layout))
    number = job.numbers("job", times=4)[0]

    slurm.run("scancel", str(number))
    done = job.ended(8)

    assert done.out.count("saved") == 4, done.err
    assert job.left() == []


def test_scancel_of_batch_script_lets_workers_save(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm then signals srun as well, which must not make it kill its tasks."""
    text = (ROOT / "scripts/slurm_one_task_per_node.sh").read_text()
    job = slurm.sbatch(text, args=(script(tmp_path, SAVE_ON_SIGTERM),), environ=CLUSTERRUN_ON_PATH)
    printed = slurm.follow(job)
    printed.wait_for("job", times=2)

    slurm.cancel(job)

    # For Slurm the job is over before its processes have ended.
    printed.wait_for("saved", times=2)
    printed.wait_for("exit code 143: clusterrun received SIGTERM", times=2)


def test_endpoint_at_another_node_than_the_first(slurm: Slurm, clusterrun: Launcher) -> None:
    """That node becomes node 0, as under torchrun, whatever SLURM_NODEID says."""
    options = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29400", "--rdzv-timeout", "20")
    around = slurm.around(*ONE_EACH.split())

    done = clusterrun.script(PRINT_VARIABLES, "--nnodes", "2", *options, around=around).ended()

    assert done.code == 0, done.err
    found = columns(workers_in(done.out), "RANK", "SLURMD_NODENAME")
    assert sorted(found) == [("0", "n1"), ("1", "n0")]
