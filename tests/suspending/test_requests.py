"""Requests from outside a running job, and what follows a suspension, through the installed command."""

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.commands.run_commands import run_command
from tests.contract.launched import Launcher, node_options
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent

LOOP = """
import time
from clusterrun import suspend
step = 0
while not suspend.requested(step):
    if not step:
        print("begun", flush=True)
    time.sleep(0.01)
    step += 1
print("saved", flush=True)
suspend.ready()
"""

HFAI = """
from pathlib import Path

class client:
    @staticmethod
    def receive_suspend_command():
        return Path("wanted").exists()

    @staticmethod
    def go_suspend():
        Path("suspended").touch()
"""
"""Stands in for High-Flyer's module, whose commands come from its platform."""

EACH_PROCESS_CALLS = """
import multiprocessing, os, time
from clusterrun import suspend

GPUS = 2

def train(local_rank, barrier):
    rank = int(os.environ["RANK"]) * GPUS + local_rank
    world = int(os.environ["WORLD_SIZE"]) * GPUS
    for step in range(100000):
        barrier.wait()
        time.sleep(0.002 * local_rank)
        if suspend.requested(step):
            time.sleep(0.2 * local_rank)
            os.write(1, f"rank {rank} of {world} saves at {step}\\n".encode())
            suspend.ready()
        if step == 2:
            print("begun", flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    barrier = context.Barrier(GPUS)
    ranks = [context.Process(target=train, args=(rank, barrier)) for rank in range(GPUS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
"""


def fake_command(folder: Path, name: str, script: str) -> dict[str, str]:
    """Return the variables with a shell script of this name first on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_suspend_command(clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path) -> None:
    """With the run id, from another process; the agent's socket is removed."""
    job = clusterrun.script(LOOP, "--run-id=mine", workers=2, environ=runtime)
    job.wait_for("begun", times=2)

    answer = run_command(runtime, "suspend", "mine")
    done = job.ended()

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == (
        "run mine was asked to suspend: it ends once all of its ranks have called suspend.requested"
        " and saved\n"
    )
    assert (done.code, done.out.count("saved")) == (75, 2)
    assert "after clusterrun suspend\n" in done.err
    assert not (tmp_path / "clusterrun").exists()


def test_suspend_hook_with_hfai_commands(clusterrun: Launcher, tmp_path: Path) -> None:
    """The platform's command suspends the job, and learns that it may end it."""
    (tmp_path / "hfai.py").write_text(HFAI)
    hook = f"python {ROOT / 'configs/hfai_suspend_hook.py'}"
    environ = {"PYTHONPATH": str(tmp_path)}
    job = clusterrun.script(LOOP, "--suspend-hook", hook, workers=2, environ=environ)
    job.wait_for("begun", times=2)

    (tmp_path / "wanted").touch()
    done = job.ended()

    assert (done.code, done.out.count("saved")) == (75, 2)
    assert f"after --suspend-hook {hook}\n" in done.err
    assert (tmp_path / "suspended").exists()
    assert job.left() == []


@pytest.mark.parametrize(
    ("script", "last_line"),
    [
        (
            'echo "$@" > queries',
            "clusterrun: Slurm job 17 was requeued (scontrol requeue)\n",
        ),
        (
            # Slurm ends the job's processes at once, those of the command and of clusterrun.
            'kill -TERM $PPID $$; sleep 0.5; echo "$@" > queries',
            "clusterrun: Slurm job 17 was requeued (scontrol requeue)\n",
        ),
        (
            "echo Job is not requeueable >&2; exit 1",
            (
                "clusterrun: error: Slurm job 17 was not requeued: scontrol requeue:"
                " Job is not requeueable (exit code 1)\n"
            ),
        ),
    ],
    ids=["requeued", "requeued at once", "refused"],
)
def test_suspended_job_is_requeued(
    clusterrun: Launcher, tmp_path: Path, script: str, last_line: str
) -> None:
    """It happens last; if the scheduler refuses, the last line has the reason. The exit code is unchanged."""
    environ = {**fake_command(tmp_path / "bin", "scontrol", script), "SLURM_JOB_ID": "17"}
    options = ("--requeue", "--suspend-signal=USR1")
    job = clusterrun.script(LOOP, *options, workers=1, environ=environ)
    job.wait_for("begun")

    job.signal(signal.SIGUSR1)
    done = job.ended()

    assert done.code == 75
    assert done.err.endswith(last_line)
    if "queries" in script:
        assert (tmp_path / "queries").read_text() == "requeue 17\n"


def test_unsuspended_job_is_not_requeued(clusterrun: Launcher, tmp_path: Path) -> None:
    """A failure is one."""
    environ = {**fake_command(tmp_path / "bin", "scontrol", "touch queries"), "SLURM_JOB_ID": "17"}

    done = clusterrun.script("raise SystemExit(3)", "--requeue", environ=environ).ended()

    assert done.code == 3
    assert not (tmp_path / "queries").exists()


def test_suspend_before_queries_the_scheduler_once(clusterrun: Launcher, tmp_path: Path) -> None:
    """The scheduler is queried once; the message has the time and its source."""
    answer = 'echo "$@" >> queries; echo EndTime=$(($(date +%s) + 300))'
    environ = {**fake_command(tmp_path / "bin", "scontrol", answer), "SLURM_JOB_ID": "17"}

    done = clusterrun.script(LOOP, "--suspend-before=299", workers=2, environ=environ).ended()

    assert (done.code, done.out.count("saved")) == (75, 2)
    assert "after --suspend-before 299: the job ends at " in done.err
    assert "(scontrol show job -o 17)\n" in done.err
    assert (tmp_path / "queries").read_text() == "show job -o 17\n"


def test_request_during_imports(clusterrun: Launcher) -> None:
    """Ranks save as soon as they begin."""
    imports = clusterrun.folder / "imports"
    text = f"import pathlib, time; pathlib.Path({str(imports)!r}).touch(); time.sleep(1)"
    (clusterrun.folder / "slow.py").write_text(text)
    job = clusterrun.script(
        f"import slow{LOOP}",
        *("--preload=slow", "--suspend-signal=USR1"),
        workers=2,
        environ={"PYTHONPATH": str(clusterrun.folder)},
    )
    wait_until(imports.exists, "an import")
    # The attempt begins at once, and waits for it.
    time.sleep(0.3)

    job.signal(signal.SIGUSR1)
    done = job.ended()

    assert (done.code, done.out.count("saved")) == (75, 2), done


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_any_process_of_a_node_may_request(clusterrun: Launcher, method: str) -> None:
    """All of them save at one step, and the job waits for the last."""
    options = ("--nproc-per-node=1", "--numa-binding=none", "--suspend-signal=USR1")
    job = clusterrun.script(EACH_PROCESS_CALLS.replace("METHOD", method), *options)
    job.wait_for("begun", times=2)

    job.signal(signal.SIGUSR1)
    done = job.ended()

    assert done.code == 75, done.err
    saved = dict(line.split(" of 2 saves at ") for line in done.out.splitlines() if "saves" in line)
    assert saved.keys() == {"rank 0", "rank 1"}
    assert len(set(saved.values())) == 1
    assert job.left() == []


ONE_HANGS = """
import os, time
from clusterrun import suspend

for step in range(100000):
    if suspend.requested(step):
        print("saved", flush=True)
        suspend.ready()
    if step == 2:
        print("begun", flush=True)
        while os.environ["RANK"] == "1":
            time.sleep(1)
    time.sleep(0.01)
"""


def test_hung_rank_is_printed(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The command and the job print it; after a second request, the job ends without that rank."""
    job = clusterrun.script(ONE_HANGS, "--run-id=mine", workers=3, environ=runtime)
    job.wait_for("begun", times=3)

    first, second = run_command(runtime, "suspend", "mine"), run_command(runtime, "suspend", "mine")
    done = job.ended()

    waits = (
        "clusterrun suspend: waiting for rank 1 to save; run clusterrun suspend again to end the"
        " job without waiting"
    )
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert first.stdout.splitlines()[1:] == [waits]
    assert second.stdout.splitlines()[1:] == []
    assert f"clusterrun: {waits}\n" in done.err
    assert done.code == 7
    assert "not suspended: rank 1 had not saved at step" in done.err
    assert "before the second request" in done.err
    assert done.out.count("saved") == 2


CREATES_SCRATCH_FOLDER = """
import os, sys
from pathlib import Path

proc = Path("/proc/self")
boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
spaces = [proc.joinpath("ns", kind).readlink().name.split("[")[1][:-1] for kind in ("pid", "time")]
started = proc.joinpath("stat").read_text().rpartition(")")[2].split()[19]
name = "-".join(["clusterrun", os.uname().nodename, boot, *spaces, str(os.getpid()), started])
Path(os.environ["TMPDIR"], name).mkdir()
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""In place of another user, who can see all this of a launcher."""


def test_existing_folder_does_not_prevent_a_scratch_folder(
    clusterrun: Launcher, tmp_path: Path
) -> None:
    """The job can be suspended."""
    environ = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    around = (sys.executable, "-c", CREATES_SCRATCH_FOLDER)
    job = clusterrun.script(LOOP, "--run-id=mine", workers=1, environ=environ, around=around)
    job.wait_for("begun")

    run_command(environ, "suspend", "mine")

    done = job.ended()
    assert (done.code, done.out.count("saved")) == (75, 1), done
    assert "warning" not in done.err


RESTARTS_AND_STAYS = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_suspend_without_scratch_folder_is_an_error(clusterrun: Launcher, tmp_path: Path) -> None:
    """It continues, because nothing would be saved; one warning for all attempts says what is lost."""
    environ = {"TMPDIR": str(tmp_path / "absent"), "XDG_RUNTIME_DIR": str(tmp_path)}
    options = ("--run-id=mine", "--max-restarts=1", "--suspend-grace=1")
    job = clusterrun.script(RESTARTS_AND_STAYS, *options, workers=1, environ=environ)
    job.wait_for("begun")

    refused = run_command(environ, "suspend", "mine")
    (clusterrun.folder / "go").touch()
    done = job.ended()

    why = f"{tmp_path}/absent: No such file or directory"
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"clusterrun: error: run mine can't be suspended and continues: {why}\n"
        "  clusterrun stop mine ends it, but nothing is saved; set TMPDIR to a folder that you can"
        " write to before you start it again\n"
    )
    assert done.code == 0, done
    assert done.err.count(f"clusterrun: warning: {why}: without a scratch folder the job") == 1


def test_other_nodes_save_if_one_has_no_scratch_folder(
    clusterrun: Launcher, runtime: dict[str, str]
) -> None:
    """Its ranks never call."""
    environs = [runtime, {"TMPDIR": "/absent", "XDG_RUNTIME_DIR": "/absent"}]
    jobs = [
        clusterrun.script(
            LOOP,
            *("--run-id=mine", "--suspend-grace=60", *options),
            workers=1,
            environ=environ,
        )
        for options, environ in zip(node_options(), environs, strict=True)
    ]
    for job in jobs:
        job.wait_for("begun")

    run_command(runtime, "suspend", "mine")

    first, second = (job.ended() for job in jobs)
    assert (first.code, first.out.count("saved"), second.code) == (75, 1, 75), (first, second)
