"""Batch scripts for Slurm."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.clients.slurm_job import QueuedJob
from clusterrun.clients.submit import Submission, submit
from clusterrun.errors import MachineError, UsageError
from clusterrun.job.this_process import CommandResult

from tests.submitting.shellcheck import shellcheck_warnings
from tests.submitting.submitted import script, submission

ONE_GPU = ("--gpus-per-node", "1")


def directives(text: str) -> list[str]:
    return re.findall(r"(?m)^#SBATCH (.*)$", text)


def command(text: str) -> list[str]:
    """Return the words of the command that the script executes."""
    _, _, last = text.replace("\\\n", "").rpartition("\nexec ")
    return shlex.split(last)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--nnodes 4", ["--nodes=4"]),
        ("--nnodes 2:4", ["--nodes=2-4", "--no-kill"]),
        ("--nnodes 14 --spares 2", ["--nodes=16", "--no-kill"]),
        ("--gpus-per-node h100:8", ["--gpus-per-node=h100:8"]),
        ("--gpus-per-node 8 --cpus-per-gpu 6", ["--gpus-per-node=8", "--cpus-per-task=48"]),
        ("--memory-per-gpu 500M", ["--mem=500M"]),
        ("--gpus-per-node 8 --memory-per-gpu 64GiB", ["--mem=512G"]),
        ("--exclusive", ["--exclusive", "--mem=0"]),
        ("--exclusive --memory-per-gpu 1T", ["--exclusive", "--mem=1024G"]),
        ("--time 90m", ["--time=01:30:00"]),
        ("--time 1-12:00:00", ["--time=1-12:00:00"]),
        ("--time 1d12h", ["--time=1-12:00:00"]),
        ("--time 45s", ["--time=00:00:45"]),
        ("--partition a100", ["--partition=a100"]),
        ("--partition a100,h100", ["--partition=a100,h100"]),
        ("--queue a100", ["--partition=a100"]),
        ("--account team --qos high", ["--account=team", "--qos=high"]),
        ("--constraint 'a100|h100'", ["--constraint=a100|h100"]),
        ("--requeue", ["--requeue", "--open-mode=append"]),
        ("--job-name probe", ["--job-name=probe"]),
        ("--directive=--mail-type=END '--directive=-C;x'", ["--mail-type=END", "-C;x"]),
        # --mem is sbatch's, though it abbreviates --memory-per-gpu.
        ("--directive --mem=4G", ["--mem=4G"]),
        # Otherwise the line would be a comment.
        ("--directive='#SBATCH --x=1'", ["--x=1"]),
        ("--job_name a --part b", ["--job-name=a", "--partition=b"]),
    ],
)
def test_option_becomes_directive(options: str, expected: list[str]) -> None:
    """The script passes shellcheck."""
    text = script(*ONE_GPU, *shlex.split(options), "train.py")

    assert [each for each in expected if each not in directives(text)] == []
    assert shellcheck_warnings(text) == ""


def test_script_of_one_node() -> None:
    """It has no lines for options that are not set."""
    text = script("--gpus-per-node", "8", "--cpus-per-gpu", "8", "train.py", "--lr", "0.1")

    assert directives(text) == [
        *("--job-name=train", "--nodes=1", "--ntasks-per-node=1"),
        *("--gpus-per-node=8", "--cpus-per-task=64"),
    ]
    assert command(text) == [
        *("srun", "--cpus-per-task=64", "/opt/python/bin/python3", "-m", "clusterrun"),
        *("train.py", "--lr", "0.1"),
    ]


def test_without_cpus_the_step_gets_those_of_the_job() -> None:
    """Without -c, srun gives the task one core."""
    text = script("--exclusive", "train.py")

    assert "cpus=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}\n" in text
    assert 'exec srun --cpus-per-task="$cpus" ' in text


def test_job_that_survives_node_loss() -> None:
    """Slurm must end neither the job with a node nor the step with a task."""
    words = command(script(*ONE_GPU, "--nnodes", "14", "--spares", "2", "train.py"))

    assert "--kill-on-bad-exit=0" in words
    assert words[words.index("--spares") :] == ["--spares", "2", "train.py"]


WORDS = ["a b", "$HOME", "it's", "`id`", 'say "no"', "\\", "*", "", "--x=ü", "#"]


def test_script_arguments_arrive_unchanged(folder: Path) -> None:
    text = script(*ONE_GPU, "train.py", *WORDS)
    (folder / "srun").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (folder / "srun").chmod(0o755)

    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{folder}:{os.defpath}", "SLURM_JOB_CPUS_PER_NODE": "64(x2)"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    options, *printed = done.stdout.split("\0")[:-1]
    assert options == "--cpus-per-task=64"
    assert printed[-len(WORDS) :] == WORDS
    assert shellcheck_warnings(text) == ""


def test_setup_lines_come_first() -> None:
    """A failing line ends the job; clusterrun comes from the environment that they set up."""
    lines = ("--setup", "ulimit -n 65536", "--setup", "export A=1")
    text = script(*ONE_GPU, "--setup", "module load cuda/12.4 nccl", *lines, "train.py")

    assert "\nset -e\nmodule load cuda/12.4 nccl\nulimit -n 65536\nexport A=1\n\n" in text
    assert command(text)[-2:] == ["clusterrun", "train.py"]
    assert shellcheck_warnings(text) == ""


def test_pyxis_container() -> None:
    """The current folder is mounted, and is its working folder."""
    image = ("--image", "nvcr.io#nvidia/pytorch:24.05-py3", "--mounts", "/data:/mnt,/scratch")
    text = script(*ONE_GPU, *image, "of_the_image.py")

    words = command(text)
    assert "--container-image=nvcr.io#nvidia/pytorch:24.05-py3" in words
    assert "--container-mounts=$PWD:$PWD,/data:/mnt,/scratch" in words
    assert words[-2:] == ["clusterrun", "of_the_image.py"]
    assert shellcheck_warnings(text) == ""


def test_folder_name_is_not_executed() -> None:
    """In double quotes, the shell would execute it."""
    image = ("--image", "x", "--mounts", "/data/$(touch${IFS}hacked):/mnt,/a")
    text = script(*ONE_GPU, *image, "of_the_image.py")

    line = next(line for line in text.splitlines() if "container-mounts" in line)
    printed = subprocess.run(
        ["bash", "-c", f"set -- {line.strip(chr(92))}\nprintf '%s\\n' \"$@\""],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "/data/$(touch${IFS}hacked):/mnt,/a\n" in printed
    assert not Path("hacked").exists()


@pytest.mark.parametrize("options", ["--image train.sif", "--image docker://x/y:1"])
def test_apptainer_container(options: str) -> None:
    """Srun starts apptainer with the driver's libraries."""
    text = script(*ONE_GPU, *options.split(), "--mounts", "/data", "of_the_image.py")

    image = options.split()[1]
    wanted = f"apptainer exec --nv --pwd $PWD --bind $PWD --bind /data {image} clusterrun"
    assert wanted in " ".join(command(text))
    assert shellcheck_warnings(text) == ""


def test_apptainer_without_gpus() -> None:
    text = script("--gpus-per-node", "0", "--image", "train.sif", "of_the_image.py")

    assert "--nv" not in text
    assert "gpu" not in "".join(directives(text))


@pytest.mark.parametrize(
    ("listed", "cpus"),
    [
        ("a* 64 gpu:h100:8(S:0-1)\na* 96 gpu:8\n", 8),
        ("a* 64 (null)\n", None),
        ("a* 48+ gpu:a100:2(S:0),gpu:v100:2(S:1)\n", 12),
        ("a* 2 gpu:4\n", None),
        ("", None),
        # The default partition has a *; without one, sbatch needs --partition.
        ("a* 96 gpu:8\nold 16 gpu:8\n", 12),
        ("a 96 gpu:8\n", None),
    ],
)
def test_cpus_per_gpu_from_sinfo(listed: str, cpus: int | None) -> None:
    """The smallest share of any node counts; nodes without GPUs do not."""
    assert submission_and_sinfo_queries(*ONE_GPU, listed=listed)[0].cpus == cpus


def submission_and_sinfo_queries(
    *words: str, listed: str = "a100 64 gpu:8\n", environ: Mapping[str, str] | None = None
) -> tuple[Submission, list[list[str]]]:
    """Return the job, and the sinfo commands that were run."""
    asked: list[list[str]] = []

    def ask(question: list[str]) -> CommandResult:
        asked.append(question)
        return CommandResult(listed, "", 0)

    return submission(*words, "train.py", environ=environ, ask=ask), asked


@pytest.mark.parametrize(
    ("words", "variable"),
    [(("--partition", "a100"), "other"), ((), "a100")],
)
def test_sinfo_is_queried_for_the_partition(words: tuple[str, ...], variable: str) -> None:
    job, asked = submission_and_sinfo_queries(
        "--gpus-per-node", "2", *words, environ={"SBATCH_PARTITION": variable}
    )

    assert job.cpus == 16
    assert [question[-1] for question in asked] == ["--partition=a100"]


@pytest.mark.parametrize("options", ["--exclusive", "--cpus-per-gpu 3", "--gpus-per-node 0"])
def test_sinfo_is_not_queried_if_cpus_are_known(options: str) -> None:
    assert submission_and_sinfo_queries(*ONE_GPU, *options.split())[1] == []


def test_no_cpus_without_answer_of_sinfo() -> None:
    job = submission(*ONE_GPU, "train.py", ask=lambda _words: CommandResult("", "no", 1))

    assert job.cpus is None


@pytest.mark.parametrize(
    ("printed", "queued"),
    [
        ("news of the day\n\n17\n", QueuedJob("17")),
        (" 17 ", QueuedJob("17")),
        ("Submitted batch job 17\n", QueuedJob("17")),
        ("17;east\n", QueuedJob("17", ("--clusters=east",))),
    ],
)
def test_job_number_is_in_last_line(printed: str, queued: QueuedJob) -> None:
    """A wrapper of sbatch may print more lines; job numbers are unique per cluster."""
    job = submission("--gpus-per-node", "1", "train.py")

    assert submit(job, "", lambda *_words: CommandResult(printed, "", 0)) == queued


@pytest.mark.parametrize(
    ("answer", "error", "message", "hint"),
    [
        (
            CommandResult("", "sbatch: error: Batch job submission failed:\n Invalid qos\n", 1),
            UsageError,
            "the job is not queued: sbatch: error: Batch job submission failed: Invalid qos",
            "to see what is requested from Slurm, add --print",
        ),
        # The job may be queued nevertheless, and the hint says how to find it.
        (
            CommandResult("", "odd\n", 0),
            MachineError,
            "Slurm accepted the job, but its ID is unknown: odd",
            "to find it by its name, train, run squeue",
        ),
        (
            CommandResult("", "sbatch: no answer in 60 s", None),
            MachineError,
            "it is not known whether the job is queued: sbatch: no answer in 60 s",
            "to look for it by its name, run squeue --name train",
        ),
    ],
)
def test_failed_submission(
    answer: CommandResult, error: type[UsageError | MachineError], message: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        submit(submission(*ONE_GPU, "train.py"), "", lambda *_words: answer)

    assert (caught.value.message, caught.value.hint) == (message, hint)


SECRET = ("--env", "KEY=hush", "train.py")


def test_env_values_are_not_on_command_line() -> None:
    """The script says how to keep it private."""
    text = script(*ONE_GPU, *SECRET)

    assert "export CLUSTERRUN_ENV=KEY=hush\n" in text
    assert "hush" not in " ".join(command(text))
    assert "(umask 077; clusterrun submit --print ... > FILE)" in text
    assert "umask" not in script(*ONE_GPU, "train.py")
    assert shellcheck_warnings(text) == ""
