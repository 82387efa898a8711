"""Scripts for LSF, PBS and Flux: every directive is one that the manual has, with the value meant."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.submitting.door import (
    Answer,
    Flux,
    JobState,
    Lsf,
    Pbs,
    Phase,
    UsageError,
    read_bjobs,
    read_files,
    read_qstat,
)
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
    (
        "--dependency afterany:7,8",
        *(("-w", "ended(7) && done(8)"), ("-W", "depend=afterany:7,afterok:8")),
        ("--dependency", "afterok:8"),
    ),
    ("--exclusive", ("-x", ""), ("-l", "place=scatter:excl"), ("--exclusive", "")),
    ("--output x.out", ("-o", "x.out"), ("-o", "x.out"), ("--output", "x.out")),
    ("--error x.err", ("-e", "x.err"), ("-e", "x.err"), ("--error", "x.err")),
    ("--job-name probe", ("-J", "probe"), ("-N", "probe"), ("--job-name", "probe")),
    (
        "--nnodes 2 --cpus-per-gpu 4",
        *(("-n", "64"), ("-l", "select=2:ncpus=32:ngpus=8:mpiprocs=1"), ("--cores-per-slot", "32")),
    ),
    (
        "--constraint a100=true",
        *(("-R", "select[a100=true]"), ("-l", "select=1:ncpus=8:ngpus=8:a100=true:mpiprocs=1")),
        ("--requires", "a100=true"),
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
        ("lsf", "--array 1-16:2%4", ("-J", "train[1-16:2]%4")),
        ("lsf", "--array 1,3", ("-J", "train[1,3]")),
        ("lsf", "--signal USR1@90", ("-wt", "2")),
        ("lsf", "--memory-per-gpu 4G", ("-R", "rusage[mem=32G/host]")),
        ("lsf", "--nnodes 2:4", ("-n", "16,32")),
        ("lsf", "--gpus-per-node h100:4", ("-gpu", "num=4:gmodel=h100")),
        ("lsf", "--requeue", ("-r", "")),
        ("lsf", "--directive=-sla=gold", ("-sla", "gold")),
        ("pbs", "--array 0-15:3%2", ("-J", "0-15:3%2")),
        ("pbs", "--requeue", ("-r", "y")),
        ("pbs", "", ("-j", "oe")),
        ("pbs", "--memory-per-gpu 4G", ("-l", "select=1:ncpus=8:ngpus=8:mem=32768mb:mpiprocs=1")),
        (
            "pbs",
            "--gpus-per-node h100:4",
            ("-l", "select=1:ncpus=4:ngpus=4:gpu_model=h100:mpiprocs=1"),
        ),
        ("flux", "--signal USR1@90", ("--signal", "SIGUSR1@90s")),
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
        ("lsf", "--array 0-3", "--array: numbers of LSF's arrays begin with 1"),
        ("lsf", "--qos high", "--qos: LSF has nothing for qos"),
        ("lsf", "--image x", "--image: LSF starts no containers of pyxis"),
        ("pbs", "--array 1,3", "--array: an array of PBS has one range"),
        ("pbs", "--signal USR1@60", "--signal: PBS has nothing for signal"),
        ("pbs", "--image x", "--image: PBS starts no containers of pyxis"),
        ("flux", "--array 1-3", "--array: Flux has nothing for array"),
        ("flux", "--memory-per-gpu 1G", "--memory-per-gpu: Flux has nothing for memory_per_gpu"),
        ("flux", "--gpus-per-node h100:2", "--gpus-per-node: Flux has no models of GPUs"),
        ("flux", "--image x", "--image: Flux starts no containers of pyxis"),
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
    more = ("--modules", "cuda", "--setup", "ulimit -c 0", "--image", "train.sif")
    text = script("--to", scheduler, "--nnodes", "2", "--gpus-per-node", "8", *more, "train.py")

    assert "\nset -e\nmodule load cuda\nulimit -c 0\n" in text
    assert "apptainer exec --nv --pwd" in " ".join(text.replace("\\\n", " ").split())
    assert complaints(text) == ""
    assert directives(scheduler, text)


def test_ids() -> None:
    """As the commands print them."""
    job = submission("--gpus-per-node", "1", "train.py")

    assert Lsf().read_id("Job <1234> is submitted to queue <normal>.\n", job) == "1234"
    assert Pbs().read_id("1234.server\n", job) == "1234.server"
    assert Flux().read_id("\u01922Wq5Rdf\n", job) == "\u01922Wq5Rdf"


def test_states_of_lsf() -> None:
    """By bjobs -o; a run limit ends a job with SIGUSR2."""
    text = "7|1|DONE|-|a.out|-\n7|2|EXIT|9|-|-\n8|0|EXIT|140|-|-\n9|0|RUN|-|-|-\n10|0|PEND|-|-|-\n"

    assert read_bjobs(text) == (
        JobState("7[1]", Phase.ENDED, "DONE", 0, Path("a.out")),
        JobState("7[2]", Phase.ENDED, "EXIT", 9),
        JobState("8", Phase.ENDED, "EXIT", 124),
        JobState("9", Phase.RUNNING, "RUN"),
        JobState("10", Phase.WAITING, "PEND"),
    )


@pytest.mark.parametrize(
    ("attributes", "phase", "code"),
    [
        ("    job_state = Q\n", Phase.WAITING, 0),
        ("    job_state = R\n", Phase.RUNNING, 0),
        ("    job_state = F\n    Exit_status = 9\n", Phase.ENDED, 9),
        ("    job_state = F\n    Exit_status = 271\n", Phase.ENDED, 143),
        ("    job_state = F\n    Exit_status = -29\n", Phase.ENDED, 124),
        ("    job_state = F\n", Phase.ENDED, 1),
    ],
)
def test_states_of_pbs(attributes: str, phase: Phase, code: int) -> None:
    """By qstat -f, whose long lines go on after a tab."""
    files = (
        "    Output_Path = n0:/home/me/tr\n\tain.o7\n    Error_Path = n0:/x\n    Join_Path = oe\n"
    )

    found = read_qstat("7", f"Job Id: 7.server\n{attributes}{files}")

    assert (found.phase, found.exit_code) == (phase, code)
    assert (found.output, found.error) == (Path("/home/me/train.o7"), None)


@pytest.mark.parametrize(
    ("line", "phase", "code"),
    [
        ("SCHED|-", Phase.WAITING, 0),
        ("RUN|-", Phase.RUNNING, 0),
        ("COMPLETED|0", Phase.ENDED, 0),
        ("FAILED|9", Phase.ENDED, 9),
        ("FAILED|-15", Phase.ENDED, 143),
        ("CANCELED|-128", Phase.ENDED, 143),
        ("TIMEOUT|142", Phase.ENDED, 124),
    ],
)
def test_states_of_flux(line: str, phase: Phase, code: int) -> None:
    """By flux jobs."""
    answers = {"jobs": Answer(f"{line}\n", "", 0)}
    gone = Answer("", "flux-job: job 7: No such file or directory", 1)

    (found,) = Flux().states("7", lambda words: answers.get(words[1], gone))

    assert (found.phase, found.exit_code) == (phase, code)
    assert (found.output, found.error) == (None, None)


def jobspec(**streams: object) -> str:
    """Return what ``flux job info ID jobspec`` prints of a job with these streams."""
    shell = {"options": {"output": streams}} if streams else {}
    system = {"duration": 0, "cwd": "/home/me", "shell": shell}
    return json.dumps({"version": 1, "tasks": [], "attributes": {"system": system}})


def test_files_of_flux() -> None:
    """Their names are templates with the id; what goes to Flux's own store is in no file."""
    own = {"stdout": {"type": "file", "path": "flux-{{id}}.out"}}
    both = {**own, "stderr": {"type": "file", "path": "/x/{{jobid.f58}}.err"}}
    kept = {"stdout": {"type": "kvs"}, "stderr": {"type": "file", "path": "{{id.words}}"}}

    assert read_files(jobspec(**own), "fAB") == (Path("/home/me/flux-fAB.out"), None)
    assert read_files(jobspec(**both), "fAB")[1] == Path("/x/fAB.err")
    assert read_files(jobspec(**kept), "fAB") == read_files(jobspec(), "fAB") == (None, None)


def test_the_id_of_a_file_of_flux() -> None:
    """Is in Flux's own form, whatever was typed."""
    answers = {
        ("jobs", "--no-header"): Answer("RUN|-\n", "", 0),
        ("job", "info"): Answer(jobspec(stdout={"type": "file", "path": "{{id}}"}), "", 0),
        ("job", "id"): Answer("fAB\n", "", 0),
    }

    (found,) = Flux().states("123", lambda words: answers[words[1], words[2]])

    assert found.output == Path("/home/me/fAB")


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (Lsf(), "Job <7> is not found"),
        (Pbs(), "qstat: Unknown Job Id 7"),
        (Flux(), "flux-jobs: ERROR: JobID 7 unknown"),
    ],
)
def test_unknown_jobs(scheduler: Lsf | Pbs | Flux, words: str) -> None:
    """Each scheduler says so in words of its own."""
    assert scheduler.states("7", lambda _words: Answer("", words, 1)) == ()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_cpus_must_be_known(scheduler: str) -> None:
    """One CPU for eight GPUs is nothing that a user has asked for."""
    with pytest.raises(UsageError, match="how many CPUs has each node of the job"):
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
