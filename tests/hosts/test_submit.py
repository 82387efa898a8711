"""``clusterrun submit`` with a real Slurm."""

import re
import signal
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import COMMAND, Ended
from tests.hosts.failing_ranks import PRINT_OR_FAIL, RANKS, two_by_two
from tests.hosts.slurm import BatchJob, Slurm

pytestmark = pytest.mark.timeout(240)

SECONDS_TO_END = 60.0

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the program ``ranks.py``."""
    (tmp_path / "ranks.py").write_text(dedent(PRINT_OR_FAIL))
    return tmp_path


def submit(slurm: Slurm, folder: Path, *words: str) -> Ended:
    """Run ``clusterrun submit WORDS`` on the login node."""
    return slurm.start(COMMAND, "submit", *words, folder=folder).ended(SECONDS_TO_END)


def ranks(text: str) -> list[str]:
    return sorted(re.findall(RANKS, text))


def test_submitted_job_of_two_nodes(slurm: Slurm, folder: Path) -> None:
    """A failing rank's code is the job's. The printed script does the same with sbatch."""
    job = ("--nnodes", "2", "--nproc-per-node", "2", "--directive=--output=%j.out", "ranks.py")
    failing = ("--env", "FAILS=3", "--setup", f"PATH={Path(COMMAND).parent}:$PATH")

    queued = submit(slurm, folder, *failing, *job)
    shown = submit(slurm, folder, "--print", *failing, *job)
    (folder / "by_hand.sh").write_text(shown.out)
    by_hand = slurm.start("sbatch", "--parsable", "by_hand.sh", folder=folder).ended()

    assert queued.code == 0, queued.err
    number = number_in(queued)
    assert f"clusterrun: Slurm has queued job {number} (ranks)\n" in queued.err
    assert by_hand.code == 0, by_hand.err
    for each in (number, int(by_hand.out)):
        assert slurm.end_of(each) == 9
        printed = (folder / f"{each}.out").read_text()
        assert ranks(printed) == two_by_two(), printed
        assert "rank 3 on n1 failed" in printed


def test_submit_ignores_ssh_launcher_and_hosts(slurm: Slurm, folder: Path) -> None:
    """They are set by the job file and by variables, which sbatch passes on to the nodes."""
    (folder / "job.yaml").write_text(
        "script: ranks.py\nnproc_per_node: 2\nlauncher: ssh\nhosts: gone-[0-1]\n"
    )
    of_ssh = {"CLUSTERRUN_LAUNCHER": "ssh", "CLUSTERRUN_HOSTS": "gone-0,gone-1"}
    words = ("submit", "--follow", "--nnodes", "2", "--directive=--output=%j.out")

    ended = slurm.start(
        COMMAND, *words, "--config", "job.yaml", folder=folder, environ=of_ssh
    ).ended(SECONDS_TO_END)

    assert ended.code == 0, ended.err
    assert ranks(ended.out) == two_by_two()


def test_refusal_has_message_of_slurm(slurm: Slurm, folder: Path) -> None:
    refused = submit(slurm, folder, "--nproc-per-node", "1", "--partition", "nowhere", "ranks.py")

    assert (refused.code, refused.out) == (2, "")
    assert (
        "the job is not queued: sbatch: error: invalid partition specified: nowhere" in refused.err
    )


def number_in(queued: Ended) -> int:
    """Return the id that ``clusterrun submit`` has printed, alone on standard output."""
    assert queued.code == 0, queued.err
    return int(queued.out)


OWN_FILES = ("--directive=--output=%j.out", "--directive=--error=%j.err")


def test_follow_prints_states_and_output(slurm: Slurm, folder: Path) -> None:
    """The exit code is the job's."""
    job = ("--nproc-per-node", "2", *OWN_FILES, "ranks.py")

    ended = submit(slurm, folder, "--follow", "--env", "FAILS=1", *job)

    assert ended.code == 9, ended.err
    (number,) = re.findall(r"Slurm has queued job (\d+) \(ranks\)\n", ended.err)
    assert ranks(ended.out) == ["rank 0 of 2 (0) on n0", "rank 1 of 2 (1) on n0"]
    assert "rank 1 on n0 failed" in ended.err
    assert f"clusterrun: job {number} has ended: FAILED, exit code 9\n" in ended.err


def test_array_and_dependencies(slurm: Slurm, folder: Path) -> None:
    (folder / "number.py").write_text(
        "import os\nnumber = int(os.environ['SLURM_ARRAY_TASK_ID'])\n"
        "print(f'array number {number}', flush=True)\nraise SystemExit(number)\n"
    )
    one = ("--nproc-per-node", "1")
    first = number_in(submit(slurm, folder, *one, "--directive=--output=first.out", "ranks.py"))
    own = (f"--dependency=afterok:{first}", "--array=0-2%2", "--output=%A.%a.out")
    more = [f"--directive={each}" for each in own]
    array = number_in(submit(slurm, folder, *one, *more, "number.py"))
    after = ("--follow", f"--directive=--dependency=afterany:{array}")

    ended = submit(slurm, folder, *one, *after, *OWN_FILES, "ranks.py")

    assert ended.code == 0, ended.err
    for number in range(3):
        assert f"array number {number}\n" in (folder / f"{array}.{number}.out").read_text()
    assert ranks((folder / "first.out").read_text()) == ["rank 0 of 1 (0) on n0"]
    assert slurm.end_of(first) == 0


SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(100)\n"


def test_ctrl_c_of_follow_does_not_end_job(slurm: Slurm, folder: Path) -> None:
    """The commands of the hint show the job and end it."""
    (folder / "sleeps.py").write_text(SLEEP)
    job = ("--nproc-per-node", "1", "--directive=--output=%j.out", "sleeps.py")
    following = slurm.start(COMMAND, "submit", "--follow", *job, folder=folder)
    (number,) = following.wait_for(r"Slurm has queued job (\d+)")
    following.wait_for("asleep")

    following.process.send_signal(signal.SIGINT)
    left = following.ended()
    lines = re.findall(rf"job {number} continues; to see it: (.*); to end it: (.*)\n", left.err)
    ((see, end),) = lines
    seen = slurm.start(*see.split(), folder=folder)
    seen.wait_for("asleep")
    seen.process.terminate()
    ended = slurm.run(*end.split())

    assert left.code == 130
    assert see == f"tail -f {folder / number}.out"
    assert ended.code == 0, ended.err
    # Long before the job would end by itself.
    slurm.end_of(int(number))


@pytest.mark.long
def test_time_limit_exits_with_124(slurm: Slurm, folder: Path) -> None:
    (folder / "sleeps.py").write_text(SLEEP.replace("100", "300"))
    job = ("--nproc-per-node", "1", "--directive=--output=%j.out", "--time", "1m", "sleeps.py")

    queued = slurm.start(COMMAND, "submit", "--follow", *job, folder=folder)
    (number,) = queued.wait_for(r"Slurm has queued job (\d+)")
    ended = queued.ended(200)

    assert ended.code == 124
    assert "DUE TO TIME LIMIT" in (folder / f"{number}.out").read_text()


RESUME = """
    import os, time
    from pathlib import Path
    from clusterrun import suspend

    resumed = os.environ["CLUSTERRUN_RESUMED"]
    print(f"begins, resumed {resumed} times", flush=True)
    for step in range(4000 if resumed == "0" else 3):
        time.sleep(0.01)
        if suspend.requested(step):
            print(f"saves at {step}", flush=True)
            suspend.ready()
"""


@pytest.mark.long
def test_suspended_job_is_requeued(slurm_that_signals_tasks: Slurm, folder: Path) -> None:
    """Its second run ends with 0, and the same file has the output of both."""
    slurm = slurm_that_signals_tasks
    (folder / "resumes.py").write_text(dedent(RESUME))
    job = (
        "--nproc-per-node=1",
        "--requeue",
        "--suspend-signal",
        "USR1",
        "--directive=--output=%j.out",
    )
    following = slurm.start(COMMAND, "submit", "--follow", *job, "resumes.py", folder=folder)
    (number,) = following.wait_for(r"Slurm has queued job (\d+)")
    following.wait_for("begins, resumed 0 times")

    assert slurm.run("scancel", "--signal=USR1", number).code == 0
    following.wait_for(r"suspended at step \d+", seconds=30)
    slurm.start_again(BatchJob(int(number), Path(), Path()))
    ended = following.ended(60)

    slurm.end_jobs()
    assert ended.code == 0, ended.err
    printed = (folder / f"{number}.out").read_text()
    assert re.findall(r"begins, resumed (\d) times", printed) == ["0", "1"]
    assert printed.replace("\r", "") in ended.out.replace("\r", "")


@pytest.mark.long
def test_submitted_everywhere_job_file(slurm: Slurm, tmp_path: Path) -> None:
    output = f"--directive=--output={tmp_path / 'out'}"
    options = ("--config", "configs/everywhere.yaml", "--nnodes", "2", output)

    ended = slurm.start(COMMAND, "submit", "--follow", *options, folder=ROOT).ended(200)

    assert ended.code == 0, ended.err
    assert float(re.findall(r"test accuracy ([0-9.]+) %", ended.out)[0]) >= 95
