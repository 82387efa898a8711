"""Scripts for LSF, PBS and Flux: every directive is one that the manual has, with the value meant."""

import subprocess
from collections.abc import Sequence

import pytest

from tests.submitting.door import BY_NAME, Answer, UsageError, cancel, expect_known
from tests.submitting.grammars import directives
from tests.submitting.shellcheck import complaints
from tests.submitting.submitted import script as script_of
from tests.submitting.submitted import submission

SCHEDULERS = ("lsf", "pbs", "flux")


def script(*words: str) -> str:
    """Return the script of ``clusterrun submit WORDS``, with CPUs if they are not asked for."""
    cpus = () if any("--cpus-per-gpu" in word for word in words) else ("--cpus-per-gpu", "1")
    return script_of(*words[:2], *cpus, *words[2:])


ALIKE = [
    ("--time 90m", ("-W", "1:30"), ("-l", "walltime=01:30:00"), ("--time-limit", "5400s")),
    ("--time 61s", ("-W", "0:02"), ("-l", "walltime=00:01:01"), ("--time-limit", "61s")),
    ("--queue gpu", ("-q", "gpu"), ("-q", "gpu"), ("--queue", "gpu")),
    ("--account team", ("-P", "team"), ("-A", "team"), ("--bank", "team")),
    ("--exclusive", ("-x", ""), ("-l", "place=scatter:excl"), ("--exclusive", "")),
    ("--job-name probe", ("-J", "probe"), ("-N", "probe"), ("--job-name", "probe")),
    (
        "--nnodes 2 --cpus-per-gpu 4",
        *(("-n", "64"), ("-l", "select=2:ncpus=32:ngpus=8:mpiprocs=1"), ("--cores-per-slot", "32")),
    ),
]
"""What is asked for, and the directive of each scheduler."""


@pytest.mark.parametrize(
    ("scheduler", "options", "expected"),
    [
        (scheduler, options, expected[number])
        for options, *expected in ALIKE
        for number, scheduler in enumerate(SCHEDULERS)
    ],
)
def test_an_option_is_a_directive(scheduler: str, options: str, expected: tuple[str, str]) -> None:
    """And the script is to shellcheck's liking."""
    text = script("--to", scheduler, "--gpus-per-node", "8", *options.split(), "train.py")

    assert expected in directives(scheduler, text)
    assert complaints(text) == ""


@pytest.mark.parametrize(
    ("scheduler", "options", "expected"),
    [
        ("lsf", "--memory-per-gpu 4G", ("-R", "rusage[mem=32G/host]")),
        ("lsf", "--nnodes 2:4", ("-n", "16,32")),
        ("lsf", "--gpus-per-node h100:4", ("-gpu", "num=4:gmodel=h100")),
        ("lsf", "--requeue", ("-r", "")),
        ("lsf", "--directive=-sla=gold", ("-sla", "gold")),
        ("pbs", "--requeue", ("-r", "y")),
        ("pbs", "", ("-j", "oe")),
        ("pbs", "--memory-per-gpu 4G", ("-l", "select=1:ncpus=8:ngpus=8:mem=32768mb:mpiprocs=1")),
        (
            "pbs",
            "--gpus-per-node h100:4",
            ("-l", "select=1:ncpus=4:ngpus=4:gpu_model=h100:mpiprocs=1"),
        ),
        ("flux", "--directive=--setattr=a.b=1", ("--setattr", "a.b=1")),
    ],
)
def test_an_option_of_one_scheduler(
    scheduler: str, options: str, expected: tuple[str, str]
) -> None:
    """Each has words of its own."""
    gpus = () if "gpus-per-node" in options else ("--gpus-per-node", "8")
    text = script("--to", scheduler, *gpus, *options.split(), "train.py")

    assert expected in directives(scheduler, text)
    assert complaints(text) == ""


@pytest.mark.parametrize(
    ("scheduler", "options", "message"),
    [
        ("lsf", "--constraint a100", "--constraint: LSF has nothing for constraint"),
        ("pbs", "--constraint a100", "--constraint: PBS has nothing for constraint"),
        ("flux", "--constraint a100", "--constraint: Flux has nothing for constraint"),
        ("pbs", "--namespace ml", "--namespace: PBS has nothing for namespace"),
        ("lsf", "--qos high", "--qos: LSF has nothing for qos"),
        (
            "lsf",
            "--image x",
            "--image: LSF starts no containers, and x is not an image of apptainer",
        ),
        (
            "pbs",
            "--image x",
            "--image: PBS starts no containers, and x is not an image of apptainer",
        ),
        ("flux", "--memory-per-gpu 1G", "--memory-per-gpu: Flux has nothing for memory_per_gpu"),
        ("flux", "--gpus-per-node h100:2", "--gpus-per-node: Flux has no models of GPUs"),
        (
            "flux",
            "--image x",
            "--image: Flux starts no containers, and x is not an image of apptainer",
        ),
    ],
)
def test_what_a_scheduler_does_not_have(scheduler: str, options: str, message: str) -> None:
    """Is refused where it is set, with what to type instead."""
    gpus = () if "gpus-per-node" in options else ("--gpus-per-node", "8")

    with pytest.raises(UsageError) as caught:
        script("--to", scheduler, *gpus, *options.split(), "train.py")

    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_containers_and_setup(scheduler: str) -> None:
    """Apptainer on each node, after the set-up."""
    lines = ("--setup", "module load cuda", "--setup", "ulimit -c 0")
    more = (*lines, "--image", "train.sif")
    text = script("--to", scheduler, "--nnodes", "2", "--gpus-per-node", "8", *more, "train.py")

    assert "\nset -e\nmodule load cuda\nulimit -c 0\n" in text
    assert "apptainer exec --nv --pwd" in " ".join(text.replace("\\\n", " ").split())
    assert complaints(text) == ""
    assert directives(scheduler, text)


def test_ids() -> None:
    """As the commands print them."""
    job = submission("--gpus-per-node", "1", "train.py")

    assert BY_NAME["lsf"].read_id("Job <1234> is submitted to queue <normal>.\n", job) == "1234"
    assert BY_NAME["lsf"].read_id("<news>\nJob <7> is submitted.\n", job) == "7"
    assert BY_NAME["lsf"].read_id("<news>\n", job) == ""
    assert BY_NAME["pbs"].read_id("1234.server\n", job) == "1234.server"
    assert BY_NAME["flux"].read_id("\u01922Wq5Rdf\n", job) == "\u01922Wq5Rdf"


@pytest.mark.parametrize(
    ("scheduler", "command"), [("lsf", "bkill 7"), ("pbs", "qdel 7"), ("flux", "flux cancel 7")]
)
def test_a_job_is_ended_and_not_followed(scheduler: str, command: str) -> None:
    """By the scheduler's own command, whose words are told; its states are not read."""
    asked: list[str] = []

    def ask(words: Sequence[str]) -> Answer:
        asked.append(" ".join(words))
        return Answer("", "no such job", 1 if len(asked) > 1 else 0)

    found = BY_NAME[scheduler]
    assert cancel(found, "7", ask) == f"{found.title} ends job 7"
    with pytest.raises(UsageError, match=f"{found.title} does not end job 7: no such job"):
        cancel(found, "7", ask)
    with pytest.raises(UsageError, match=f"does not read what {found.title} says of its jobs"):
        expect_known(found, "7", ask)
    assert asked == [command, command]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_cpus_must_be_known(scheduler: str) -> None:
    """One CPU for eight GPUs is nothing that a user has asked for."""
    with pytest.raises(UsageError, match="the number of CPUs of each node is not set"):
        script_of("--to", scheduler, "--gpus-per-node", "8", "train.py")
    if scheduler != "pbs":
        assert script_of("--to", scheduler, "--exclusive", "train.py")


@pytest.mark.parametrize("scheduler", ["slurm", *SCHEDULERS])
def test_variables_are_on_no_command_line(scheduler: str) -> None:
    """All users of a node can read those; the script itself is the user's."""
    nasty = 'it\'s "$HOME" `id` \\ *'
    options = ("--gpus-per-node", "8", "--nnodes", "2", "--env", f"KEY={nasty}", "--env", "B=2")
    text = script("--to", scheduler, *options, "train.py")

    [before, rest] = text.split("export CLUSTERRUN_ENV=")
    assert "KEY" not in before
    [assigned, *commands] = rest.split("\nB=2")
    run = ["bash", "-c", f'export CLUSTERRUN_ENV={assigned}\nB=2"\nprintenv CLUSTERRUN_ENV']
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == (
        f"KEY={nasty}\nB=2\n"
    )
    assert len(commands) == 1
    assert "--env" not in commands[0]
    assert complaints(text) == ""


def test_no_other_user_reads_the_variables_of_a_job_of_pbs() -> None:
    """Which starts the agents of other nodes without the script's variables."""
    several = ("--gpus-per-node", "8", "--env", "A=1", "train.py")
    text = script("--to", "pbs", "--nnodes", "2", *several)

    assert "mktemp" in text
    assert "trap 'rm -f" in text
    assert "mktemp" not in script("--to", "pbs", *several)
    assert "mktemp" not in script("--to", "lsf", "--nnodes", "2", *several)
