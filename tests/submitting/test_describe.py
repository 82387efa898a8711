"""What is submitted: what is asked of Slurm, and the command of each node."""

from pathlib import Path

import pytest
from clusterrun.clients.submit import Gpus, path_of_launcher
from clusterrun.errors import UsageError
from msgspec.structs import replace

from tests.submitting.submitted import SUBMITS, script, submission

JOB = """\
script: train.py
args: [--epochs, 3]
nnodes: 2
nproc_per_node: 4
master_addr: node0
max_restarts: 1
env:
  A: b c
"""


@pytest.fixture
def job_file(folder: Path) -> tuple[str, ...]:
    """Write a job file; return the options that name it."""
    (folder / "job.yaml").write_text(JOB)
    return ("--config", "job.yaml")


def test_a_directive_is_one_line() -> None:
    """Several would end the directives; a line feed at the end is none."""
    given = ("--gpus-per-node", "1", "--directive")

    assert "#SBATCH --nice\n\n" in script(*given, "--nice\n", "train.py")
    with pytest.raises(UsageError, match=r"^--directive: .* is not one line"):
        script(*given, "--nice\n--hold\n", "train.py")


def test_the_command_has_what_the_file_sets(job_file: tuple[str, ...]) -> None:
    """A change of the file while the job is queued changes nothing.

    The number of nodes and their addresses come from the scheduler.
    """
    job = submission(*job_file)

    assert job.options == (("--nproc-per-node", "4"), ("--max-restarts", "1"))
    assert job.env == "A=b c"
    assert job.words == ("train.py", "--epochs", "3")


@pytest.mark.parametrize(
    ("typed", "args"),
    [((), ()), (("--",), ()), (("--", "--lr", "a b"), ("--lr", "a b"))],
)
def test_arguments_after_dashes(
    job_file: tuple[str, ...], typed: tuple[str, ...], args: tuple[str, ...]
) -> None:
    """They follow those of the file."""
    assert submission(*job_file, *typed).words == ("train.py", "--epochs", "3", *args)


WITH_SERVICES = """\
script: train.py
args: [--epochs, 3]
nnodes: 2
nproc_per_node: 4
max_restarts: 1
env: {A: b c}
services:
  server: {command: [serve, $PORT], gpus_per_worker: 2, ready: /health}
"""


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", ""),
        ("--", "--"),
        ("-- --lr 1", "-- --lr 1"),
        ("-- --nnodes 3 -- x", "-- --nnodes 3 -- x"),
    ],
)
def test_a_job_with_services_is_read_on_its_nodes(folder: Path, typed: str, words: str) -> None:
    """No option says what the file does: the command names it, and what is typed besides."""
    (folder / "job.yaml").write_text(WITH_SERVICES)
    options = ("--gpus-per-node", "8", "--max-restarts", "2", "--config", "job.yaml")

    job = submission(*options, *typed.split(), environ={"CLUSTERRUN_HANG_TIMEOUT": "60"})

    assert job.words == ("--config", "job.yaml", *words.split())
    assert sorted(job.options) == [("--hang-timeout", "60"), ("--max-restarts", "2")]
    assert (job.nodes, job.gpus, job.env) == ("2", Gpus(8), "")


def test_services_need_gpus_that_no_number_of_workers_tells(folder: Path) -> None:
    """The main program has what they leave."""
    (folder / "job.yaml").write_text(WITH_SERVICES)

    with pytest.raises(UsageError) as refused:
        submission("--config", "job.yaml")
    assert "--gpus-per-node" in refused.value.hint


def test_the_script_of_a_job_with_services(folder: Path) -> None:
    """Its last line is what a user would type behind srun."""
    (folder / "job.yaml").write_text(WITH_SERVICES)

    text = script("--gpus-per-node", "8", "--config", "job.yaml", "--", "--lr", "1")

    assert text.replace("\\\n", "").split()[-5:] == ["--config", "job.yaml", "--", "--lr", "1"]
    assert "#SBATCH --gpus-per-node=8\n" in text


def test_nothing_that_finds_nodes_without_a_scheduler_reaches_its_nodes(folder: Path) -> None:
    """Neither from a job file for ssh nor from a variable that the scheduler passes on."""
    (folder / "job.yaml").write_text(
        "script: train.py\nnproc_per_node: 1\nlauncher: ssh\nhosts: a,b\nssh_options: -p 3\n"
    )
    variables = {
        "CLUSTERRUN_LAUNCHER": "ssh",
        "CLUSTERRUN_HOSTS": "a,b",
        "PET_NNODES": "2",
        "CLUSTERRUN_CONFIG": "job.yaml",
        "CLUSTERRUN_MAX_RESTARTS": "1",
    }

    job = submission(environ=variables)

    assert job.options == (("--nproc-per-node", "1"), ("--max-restarts", "1"))
    assert set(job.unset) == variables.keys() - {"CLUSTERRUN_MAX_RESTARTS"}
    assert submission("--config", "job.yaml").unset == ()


def test_the_command_has_what_variables_set(job_file: tuple[str, ...]) -> None:
    """They replace the file's values, and flags replace them."""
    variables = {"CLUSTERRUN_MAX_RESTARTS": "5", "PET_TEE": "3", "CLUSTERRUN_NO_FAIL_FAST": "no"}
    options = ("--tee", "0:1", "--exec", "--pass-local-rank", "--env", "B=c")
    job = submission(*job_file, *options, environ=variables)

    assert job.options == (
        ("--pass-local-rank=true",),
        ("--exec",),
        ("--nproc-per-node", "4"),
        ("--max-restarts", "5"),
        ("--tee", "0:1"),
    )
    assert job.env == "A=b c\nB=c"


def test_a_variable_with_a_line_break_is_refused(folder: Path) -> None:
    """It cannot be passed on; a command line, which can hold it, is read by all."""
    (folder / "job.yaml").write_text("script: train.py\nenv:\n  KEY: |\n    a\n    b\n")

    with pytest.raises(
        UsageError, match=r"^job.yaml:3 env.KEY: KEY contains a line break"
    ) as refused:
        submission("--config", "job.yaml", "--gpus-per-node", "1")
    assert "a file that only you can read" in refused.value.hint


def test_addresses_on_the_command_line_stay() -> None:
    """Whoever types one for a scheduler means it."""
    options = ("--gpus-per-node", "1", "--nnodes", "1:2", "--master-port", "4000")
    job = submission(*options, "train.py")

    assert job.options == (("--nnodes", "1:2"), ("--master-port", "4000"))


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--nproc-per-node 4", Gpus(4)),
        ("--nproc-per-node 4 --gpus-per-worker 2", Gpus(8)),
        ("--nproc-per-node 4 --gpus-per-worker 0", Gpus(0)),
        ("--nproc-per-node 4 --gpus-per-node a100:2", Gpus(2, "a100")),
        ("--nproc-per-node auto --exclusive", None),
    ],
)
def test_workers_need_gpus(options: str, gpus: Gpus | None) -> None:
    """One each, unless told otherwise."""
    assert submission(*options.split(), "train.py").gpus == gpus


def test_cpus_and_memory_of_a_job_without_gpus() -> None:
    """Are those of its workers."""
    options = ("--gpus-per-node", "0", "--nproc-per-node", "3", "--cpus-per-gpu", "2")
    job = submission(*options, "--memory-per-gpu", "1G", "train.py")

    assert (job.cpus, job.memory) == (6, 3072)
    assert submission("--exclusive", "train.py").cpus is None


def test_a_worker_without_a_gpu_has_a_cpu_of_its_own() -> None:
    """A scheduler's default is one CPU for all of them."""
    job = submission("--gpus-per-node", "0", "--nproc-per-node", "2", "train.py")
    whole = submission("--gpus-per-node", "0", "--nproc-per-node", "2", "--exclusive", "train.py")

    assert (job.cpus, whole.cpus) == (2, None)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("train.py", "train"),
        ("-m pkg.train", "pkg.train"),
        ("--image x some/odd,name.py", "odd-name"),
        ("--no-python /usr/bin/env", "env"),
        ("--image x --no-python ...", "clusterrun"),
    ],
)
def test_a_job_is_called_as_its_program(words: str, name: str) -> None:
    """Characters that a scheduler may refuse are replaced."""
    assert submission("--gpus-per-node", "1", *words.split()).job_name == name


def test_the_launcher_is_that_which_submits(folder: Path) -> None:
    """By its path, which all nodes have; without one beside the interpreter, by the interpreter."""
    python = str(folder / "python")
    without = path_of_launcher(python)
    (folder / "clusterrun").touch()

    assert without == (python, "-m", "clusterrun")
    assert path_of_launcher(python) == (str(folder / "clusterrun"),)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [((), True), (("--setup", "module load x"), False), (("--python", "python3"), False)],
)
def test_the_environment_that_is_active_at_the_submission(
    folder: Path, words: tuple[str, ...], *, chosen: bool
) -> None:
    """The job has its path, if it would be the default here; the lines of a set-up choose for themselves."""
    active = folder / "active"
    for path in (active / "bin/python", active / "lib/python3.12/site-packages/torch/__init__.py"):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    process = replace(SUBMITS, has_torch=lambda: False)
    given = ("--exclusive", *words, "train.py")

    job = submission(*given, environ={"VIRTUAL_ENV": str(active)}, process=process)

    assert (("--python", f"{active}/bin/python") in job.options) is chosen


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "submit: {time: 1h}",
            "job.yaml:1 submit: there is no such key any more",
            "--time 2:00:00",
        ),
        ("submit:", "job.yaml:1 submit: there is no such key any more", "--directive=--mail"),
        ("slurm: {time: 1h}", "job.yaml:1 slurm: there is no such key any more", "--time 2:00:00"),
        ("max_restarts: few", "job.yaml:1 max_restarts: 'few' is not a number of restarts", ""),
    ],
)
def test_what_a_job_file_cannot_have(folder: Path, text: str, message: str, hint: str) -> None:
    """With file, line and key, and what to write instead; nothing is submitted."""
    (folder / "job.yaml").write_text(f"{text}\n")

    with pytest.raises(UsageError) as caught:
        submission("--gpus-per-node", "1", "--config", "job.yaml", "train.py")

    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


def test_spares_of_a_job_file_are_nodes(folder: Path) -> None:
    """They are asked for, too."""
    (folder / "job.yaml").write_text("nnodes: 2\nspares: 1\n")

    assert submission("--gpus-per-node", "1", "--config", "job.yaml", "train.py").nodes == "3"
