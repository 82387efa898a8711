"""What is submitted: flags, then the scheduler's section of the job file, then the shared one."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.submitting.door import (
    Fact,
    Gpus,
    UsageError,
    describe,
    find_command,
    path_of_launcher,
    read_job_file,
)
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
submit:
  time: 1h
  account: team
slurm:
  time: 2:00:00
  partition: a100
  mounts: [/data, /scratch]
  setup:
    - ulimit -n 9999
  directive: --mail-type=END
"""


@pytest.fixture
def job_file(folder: Path) -> tuple[str, ...]:
    """Write a job file; return the options that name it."""
    (folder / "job.yaml").write_text(JOB)
    return ("--config", "job.yaml")


def test_sections_hold_what_is_asked_of_a_scheduler(job_file: tuple[str, ...]) -> None:
    """Its own section wins over the shared one; each value has its line."""
    job = submission(*job_file)

    assert (job.request.time, job.origins["time"]) == (7200, "job.yaml:13 slurm.time")
    assert (job.request.account, job.origins["account"]) == ("team", "job.yaml:11 submit.account")
    assert job.request.mounts == ("/data", "/scratch")
    assert (job.request.setup, job.request.directive) == (("ulimit -n 9999",), ("--mail-type=END",))


def test_a_directive_of_a_batch_script_is_one_line(folder: Path) -> None:
    """A text that YAML ends with a line feed is one; several would end the directives."""
    section = "script: train.py\nnproc_per_node: 1\nslurm:\n  directive: |\n    --nice\n"
    (folder / "job.yaml").write_text(section)

    assert "#SBATCH --nice\n\n" in script("--config", "job.yaml")
    (folder / "job.yaml").write_text(f"{section}    --hold\n")
    with pytest.raises(UsageError, match=r"^job.yaml:4 slurm.directive: .* is not one line"):
        script("--config", "job.yaml")


def test_flags_win_and_lines_add_up(job_file: tuple[str, ...]) -> None:
    """A flag replaces a value; set-up lines of the job file come first."""
    job = submission(*job_file, "--time", "30m", "--setup", "ulimit -c 0")

    assert (job.request.time, job.origins["time"]) == (1800, "--time")
    assert job.request.setup == ("ulimit -n 9999", "ulimit -c 0")


def test_a_job_that_starts_here_ignores_the_sections(job_file: tuple[str, ...]) -> None:
    """The same file runs without a scheduler."""
    settings = read_job_file(Fact(job_file[1], "--config")).settings

    assert sorted(settings) == ["env", "master_addr", "max_restarts", "nnodes", "nproc_per_node"]


def test_the_command_has_what_the_file_sets(job_file: tuple[str, ...]) -> None:
    """A change of the file while the job is queued changes nothing.

    The number of nodes and their addresses come from the scheduler.
    """
    command = submission(*job_file).command

    assert command.options == (("--nproc-per-node", "4"), ("--max-restarts", "1"))
    assert command.env == "A=b c"
    assert command.words == ("train.py", "--epochs", "3")


def test_sections_have_the_shape_of_the_job_there(job_file: tuple[str, ...]) -> None:
    """Other nodes and workers under a scheduler than here; a flag or a variable replaces them."""
    text = Path("job.yaml").read_text()
    shape = "submit:\n  nnodes: 5\n  nproc_per_node: 8\n"
    Path("job.yaml").write_text(text.replace("submit:\n", shape))

    job = submission(*job_file)
    typed = submission(*job_file, "--nnodes", "3")

    assert (job.nodes, job.origins["nnodes"]) == (5, "job.yaml:10 submit.nnodes")
    assert job.gpus == Gpus(8)
    assert job.origins["gpus_per_node"] == "job.yaml:11 submit.nproc_per_node"
    assert job.command.options[0] == ("--nproc-per-node", "8")
    assert (typed.nodes, typed.origins["nnodes"]) == (3, "--nnodes")
    in_file = read_job_file(Fact("job.yaml", "--config")).settings
    assert in_file["nnodes"] == (Fact("2", "job.yaml:3 nnodes"),)


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

    command = submission(environ=variables).command

    assert command.options == (("--nproc-per-node", "1"), ("--max-restarts", "1"))
    assert set(command.unset) == variables.keys() - {"CLUSTERRUN_MAX_RESTARTS"}
    assert submission("--config", "job.yaml").command.unset == ()


def test_the_command_has_what_variables_set(job_file: tuple[str, ...]) -> None:
    """They replace the file's values, and flags replace them."""
    variables = {"CLUSTERRUN_MAX_RESTARTS": "5", "PET_TEE": "3", "CLUSTERRUN_NO_FAIL_FAST": "no"}
    options = ("--tee", "0:1", "--exec", "--pass-local-rank", "--env", "B=c")
    command = submission(*job_file, *options, environ=variables).command

    assert command.options == (
        ("--pass-local-rank=true",),
        ("--exec",),
        ("--nproc-per-node", "4"),
        ("--max-restarts", "5"),
        ("--tee", "0:1"),
    )
    assert command.env == "A=b c\nB=c"


def test_a_variable_with_a_line_break_is_refused(folder: Path) -> None:
    """It cannot be passed on; a command line, which can hold it, is read by all."""
    (folder / "job.yaml").write_text("script: train.py\nenv:\n  KEY: |\n    a\n    b\n")

    with pytest.raises(UsageError, match=r"^job.yaml:3 env.KEY: KEY has a line break") as refused:
        submission("--config", "job.yaml", "--gpus-per-node", "1")
    assert "a file that only you can read" in refused.value.hint


def test_addresses_on_the_command_line_stay() -> None:
    """Whoever types one for a scheduler means it."""
    options = ("--gpus-per-node", "1", "--nnodes", "1:2", "--master-port", "4000")
    command = submission(*options, "train.py").command

    assert command.options == (("--nnodes", "1:2"), ("--master-port", "4000"))


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
    process = replace(SUBMITS, finds_torch=lambda: False)
    given = ("--exclusive", *words, "train.py")

    job = submission(*given, environ={"VIRTUAL_ENV": str(active)}, process=process)

    assert (job.command.option("--python") == f"{active}/bin/python") is chosen


def path_with(folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_the_scheduler_is_the_one_of_this_machine(folder: Path) -> None:
    """Its command is on PATH."""
    environ = path_with(folder, "sbatch")
    (folder / "job.yaml").write_text("submit: {to: slurm}\n")
    gpus = ("--gpus-per-node", "1")

    found = submission("--to", "slurm", *gpus, "train.py").scheduler
    in_file = described_without_to("--config", "job.yaml", *gpus, "train.py")
    here = described_without_to(*gpus, "train.py", environ=environ)

    assert (found, in_file) == (Fact("slurm", "--to"), Fact("slurm", "job.yaml:1 submit.to"))
    assert here == Fact("slurm", f"{folder}/sbatch")


def described_without_to(*words: str, environ: dict[str, str] | None = None) -> Fact[str]:
    _, line = find_command(["submit", *words], "clusterrun")
    return describe(line, environ or {"PATH": os.devnull}, SUBMITS).scheduler


@pytest.mark.parametrize(
    ("section", "hint"),
    [
        ("slurm: {mail_type: END}", "type --directive=--mail-type=END"),
        ("slurm: {ntasks-per-node: 4}", "leave it out: one agent on each node starts"),
        ("slurm: {gres: gpu:h100:4}", "type --gpus-per-node h100:4"),
        ("slurm: {job-name: a}", "did you mean job_name?"),
        ("slurm: {output: my logs/%j}", "type --directive='--output=my logs/%j'"),
        ("slurm: {modules: [cuda, nccl]}", "type --setup 'module load cuda nccl'"),
        ("submit: {array: 0-3}", "type --directive=--array=0-3; for PBS --directive='-J 0-3'"),
        ("kubernetes: {array: 0-3}", "submit once for each number"),
    ],
)
def test_a_key_that_sections_do_not_have(folder: Path, section: str, hint: str) -> None:
    """One of sbatch's, or of clusterrun 0.1: what to type."""
    (folder / "job.yaml").write_text(f"{section}\n")

    with pytest.raises(UsageError, match=r"^job.yaml:1 .*: there is no such key") as caught:
        submission("--gpus-per-node", "1", "--config", "job.yaml", "train.py")

    assert caught.value.hint.startswith(hint)
    is_to_type = hint.startswith("type ")
    assert ("\nin a job file, --" in caught.value.hint) is is_to_type


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm: a100\n", "job.yaml:1 slurm: a single value, where lines of NAME: VALUE"),
        ("slurm: {tme: 1h}\n", "job.yaml:1 slurm.tme: there is no such key"),
        ("slurm: {to: slurm}\n", "job.yaml:1 slurm.to: there is no such key"),
        ("slurm: {print: yes}\n", "job.yaml:1 slurm.print: there is no such key"),
        ("slurm:\n  time: 90\n", "job.yaml:2 slurm.time: '90' is not a time limit"),
        ("submit:\n  array: 0-3\n", "job.yaml:2 submit.array: there is no such key any more"),
        (
            "slurm:\n  groups: [{nnodes: 1}]\n",
            "job.yaml:2 slurm.groups: there is no such key any more",
        ),
        ("slurm: {setup: [[a]]}\n", "job.yaml:1 slurm.setup: a list, where a single value"),
        ("max_restarts: few\n", "job.yaml:1 max_restarts: 'few' is not a number of restarts"),
        ("nnodes: 2\nspares: 1\n", ""),
    ],
)
def test_what_a_scheduler_would_refuse(folder: Path, text: str, message: str) -> None:
    """With file, line and key; nothing is submitted."""
    (folder / "job.yaml").write_text(text)
    line = ("--gpus-per-node", "1", "--config", "job.yaml", "train.py")

    if not message:
        assert submission(*line).nodes == 3
        return
    with pytest.raises(UsageError) as caught:
        submission(*line)

    assert caught.value.message.startswith(message)
