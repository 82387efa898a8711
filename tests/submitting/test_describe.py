"""The job to submit: its resources, and the command of each node."""

from pathlib import Path

import pytest
from clusterrun.clients.submit import Gpus, launcher_command
from clusterrun.errors import UsageError
from msgspec.structs import replace

from tests.submitting.submitted import SUBMITTING_PROCESS, script, submission

JOB_FILE = """\
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
    (folder / "job.yaml").write_text(JOB_FILE)
    return ("--config", "job.yaml")


def test_directive_with_line_break_is_refused() -> None:
    """A second line would end the directives; a trailing line feed is allowed."""
    given = ("--gpus-per-node", "1", "--directive")

    assert "#SBATCH --nice\n\n" in script(*given, "--nice\n", "train.py")
    with pytest.raises(UsageError, match=r"^--directive: .* is not one line"):
        script(*given, "--nice\n--hold\n", "train.py")


def test_options_of_job_file_are_in_command(job_file: tuple[str, ...]) -> None:
    """Changes of the file while the job is queued have no effect.

    The number of nodes and their addresses come from Slurm.
    """
    job = submission(*job_file)

    assert job.options == (("--nproc-per-node", "4"), ("--max-restarts", "1"))
    assert job.env == "A=b c"
    assert job.words == ("train.py", "--epochs", "3")


@pytest.mark.parametrize(
    ("typed", "args"),
    [((), ()), (("--",), ()), (("--", "--lr", "a b"), ("--lr", "a b"))],
)
def test_arguments_after_dashes_stay_arguments(
    job_file: tuple[str, ...], typed: tuple[str, ...], args: tuple[str, ...]
) -> None:
    """They follow the arguments in the file."""
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
def test_job_file_with_services_is_read_on_nodes(folder: Path, typed: str, words: str) -> None:
    """The command has --config and the flags."""
    (folder / "job.yaml").write_text(WITH_SERVICES)
    options = ("--gpus-per-node", "8", "--max-restarts", "2", "--config", "job.yaml")

    job = submission(*options, *typed.split(), environ={"CLUSTERRUN_HANG_TIMEOUT": "60"})

    assert job.words == ("--config", "job.yaml", *words.split())
    assert sorted(job.options) == [("--hang-timeout", "60"), ("--max-restarts", "2")]
    assert (job.nodes, job.gpus, job.env) == ("2", Gpus(8), "")


def test_services_need_gpus_per_node(folder: Path) -> None:
    """The main program gets the GPUs that services leave."""
    (folder / "job.yaml").write_text(WITH_SERVICES)

    with pytest.raises(UsageError) as refused:
        submission("--config", "job.yaml")
    assert "--gpus-per-node" in refused.value.hint


def test_script_of_job_with_services(folder: Path) -> None:
    (folder / "job.yaml").write_text(WITH_SERVICES)

    text = script("--gpus-per-node", "8", "--config", "job.yaml", "--", "--lr", "1")

    assert text.replace("\\\n", "").split()[-5:] == ["--config", "job.yaml", "--", "--lr", "1"]
    assert "#SBATCH --gpus-per-node=8\n" in text


def test_node_address_options_of_file_and_variables_are_dropped(folder: Path) -> None:
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


def test_options_of_variables_are_in_command(job_file: tuple[str, ...]) -> None:
    """Variables override the file's values, and flags override variables."""
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


def test_env_value_with_line_break_is_refused(folder: Path) -> None:
    """A variable can't hold it, and all users can read a command line."""
    (folder / "job.yaml").write_text("script: train.py\nenv:\n  KEY: |\n    a\n    b\n")

    with pytest.raises(
        UsageError, match=r"^job.yaml:3 env.KEY: KEY contains a line break"
    ) as refused:
        submission("--config", "job.yaml", "--gpus-per-node", "1")
    assert "a file that only you can read" in refused.value.hint


def test_address_flags_are_kept() -> None:
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
def test_gpus_per_node_from_workers(options: str, gpus: Gpus | None) -> None:
    """Each worker has one by default."""
    assert submission(*options.split(), "train.py").gpus == gpus


def test_cpus_and_memory_without_gpus_are_per_worker() -> None:
    options = ("--gpus-per-node", "0", "--nproc-per-node", "3", "--cpus-per-gpu", "2")
    job = submission(*options, "--memory-per-gpu", "1G", "train.py")

    assert (job.cpus, job.memory) == (6, 3072)
    assert submission("--exclusive", "train.py").cpus is None


def test_one_cpu_per_worker_without_gpus() -> None:
    """Slurm's default is one CPU for all workers."""
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
def test_default_job_name(words: str, name: str) -> None:
    """Characters that Slurm may reject are replaced."""
    assert submission("--gpus-per-node", "1", *words.split()).job_name == name


def test_launcher_is_the_submitting_clusterrun(folder: Path) -> None:
    """It is started by its path, or by its interpreter if that has no script beside it."""
    python = str(folder / "python")
    without = launcher_command(python)
    (folder / "clusterrun").touch()

    assert without == (python, "-m", "clusterrun")
    assert launcher_command(python) == (str(folder / "clusterrun"),)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [((), True), (("--setup", "module load x"), False), (("--python", "python3"), False)],
)
def test_active_environment_at_submission(
    folder: Path, words: tuple[str, ...], *, chosen: bool
) -> None:
    """The job gets the path of its interpreter, unless --setup chooses an environment."""
    active = folder / "active"
    for path in (active / "bin/python", active / "lib/python3.12/site-packages/torch/__init__.py"):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    process = replace(SUBMITTING_PROCESS, has_torch=lambda: False)
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
def test_impossible_values_in_job_file(folder: Path, text: str, message: str, hint: str) -> None:
    """The message has file, line and key, and the hint what to write instead."""
    (folder / "job.yaml").write_text(f"{text}\n")

    with pytest.raises(UsageError) as caught:
        submission("--gpus-per-node", "1", "--config", "job.yaml", "train.py")

    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


def test_spares_of_job_file_count_as_nodes(folder: Path) -> None:
    (folder / "job.yaml").write_text("nnodes: 2\nspares: 1\n")

    assert submission("--gpus-per-node", "1", "--config", "job.yaml", "train.py").nodes == "3"
