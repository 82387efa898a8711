"""Batch scripts for Slurm: each option is the directive that sbatch(1) has for it."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from clusterrun.clients.submit import QueuedJob, Submission, submit
from clusterrun.errors import MachineError, UsageError
from clusterrun.job.this_process import CommandResult

from tests.submitting.shellcheck import complaints
from tests.submitting.submitted import script, submission

ONE_GPU = ("--gpus-per-node", "1")


def directives(text: str) -> list[str]:
    return re.findall(r"(?m)^#SBATCH (.*)$", text)


def command(text: str) -> list[str]:
    """Return the words of the command that the script becomes."""
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
        ("--constraint a100|h100", ["--constraint=a100|h100"]),
        ("--requeue", ["--requeue", "--open-mode=append"]),
        ("--job-name probe", ["--job-name=probe"]),
        ("--directive=--mail-type=END --directive=-C;x", ["--mail-type=END", "-C;x"]),
    ],
)
def test_an_option_is_a_directive(options: str, expected: list[str]) -> None:
    """And the script is to shellcheck's liking."""
    text = script(*ONE_GPU, *options.split(), "train.py")

    assert [each for each in expected if each not in directives(text)] == []
    assert complaints(text) == ""


def test_a_job_of_one_node_needs_few_lines() -> None:
    """Nothing that is not asked for is in the script."""
    text = script("--gpus-per-node", "8", "--cpus-per-gpu", "8", "train.py", "--lr", "0.1")

    assert directives(text) == [
        *("--job-name=train", "--nodes=1", "--ntasks-per-node=1"),
        *("--gpus-per-node=8", "--cpus-per-task=64"),
    ]
    assert command(text) == [
        *("srun", "--cpus-per-task=64", "/opt/python/bin/python3", "-m", "clusterrun"),
        *("train.py", "--lr", "0.1"),
    ]


def test_cpus_that_are_not_asked_for_are_those_of_the_job() -> None:
    """Without -c, srun gives its task one core; the variable is Slurm's."""
    text = script("--exclusive", "train.py")

    assert "cpus=${SLURM_JOB_CPUS_PER_NODE%%[(,]*}\n" in text
    assert 'exec srun --cpus-per-task="$cpus" ' in text


def test_a_job_that_outlives_its_nodes() -> None:
    """Slurm ends neither the job with a node nor the step with a task."""
    words = command(script(*ONE_GPU, "--nnodes", "14", "--spares", "2", "train.py"))

    assert "--kill-on-bad-exit=0" in words
    assert words[words.index("--spares") :] == ["--spares", "2", "train.py"]


WORDS = ["a b", "$HOME", "it's", "`id`", 'say "no"', "\\", "*", "", "--x=ü", "#"]


def test_words_of_the_script_arrive_unchanged(folder: Path) -> None:
    """Blanks, quotes, variables and patterns are quoted for the shell that runs the script."""
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
    assert complaints(text) == ""


def test_the_setup_comes_first() -> None:
    """A line that fails ends the job; clusterrun is that of the environment they make."""
    lines = ("--setup", "ulimit -n 65536", "--setup", "export A=1")
    text = script(*ONE_GPU, "--setup", "module load cuda/12.4 nccl", *lines, "train.py")

    assert "\nset -e\nmodule load cuda/12.4 nccl\nulimit -n 65536\nexport A=1\n\n" in text
    assert command(text)[-2:] == ["clusterrun", "train.py"]
    assert complaints(text) == ""


def test_a_container_of_pyxis() -> None:
    """It begins in the current folder, which it sees."""
    image = ("--image", "nvcr.io#nvidia/pytorch:24.05-py3", "--mounts", "/data:/mnt,/scratch")
    text = script(*ONE_GPU, *image, "of_the_image.py")

    words = command(text)
    assert "--container-image=nvcr.io#nvidia/pytorch:24.05-py3" in words
    assert "--container-mounts=$PWD:$PWD,/data:/mnt,/scratch" in words
    assert words[-2:] == ["clusterrun", "of_the_image.py"]
    assert complaints(text) == ""


def test_no_shell_runs_what_a_folder_is_called() -> None:
    """The batch script would, in double quotes."""
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
def test_a_container_of_apptainer(options: str) -> None:
    """On each node, srun starts apptainer with the driver's libraries."""
    text = script(*ONE_GPU, *options.split(), "--mounts", "/data", "of_the_image.py")

    image = options.split()[1]
    wanted = f"apptainer exec --nv --pwd $PWD --bind $PWD --bind /data {image} clusterrun"
    assert wanted in " ".join(command(text))
    assert complaints(text) == ""


def test_apptainer_without_gpus() -> None:
    """Needs no driver."""
    text = script("--gpus-per-node", "0", "--image", "train.sif", "of_the_image.py")

    assert "--nv" not in text
    assert "gpu" not in "".join(directives(text))


@pytest.mark.parametrize(
    ("listed", "cpus"),
    [
        ("64 gpu:h100:8(S:0-1)\n96 gpu:8\n", 8),
        ("64 (null)\n", None),
        ("48+ gpu:a100:2(S:0),gpu:v100:2(S:1)\n", 12),
        ("2 gpu:4\n", None),
        ("", None),
    ],
)
def test_a_gpu_has_its_part_of_the_cpus(listed: str, cpus: int | None) -> None:
    """On the node with the fewest; nodes without GPUs do not count."""
    assert asked_sinfo(*ONE_GPU, listed=listed)[0].cpus == cpus


def asked_sinfo(*words: str, listed: str = "64 gpu:8\n") -> tuple[Submission, list[list[str]]]:
    """Return the job with what sinfo answers, and the questions."""
    asked: list[list[str]] = []

    def ask(question: list[str]) -> CommandResult:
        asked.append(question)
        return CommandResult(listed, "", 0)

    return submission(*words, "train.py", ask=ask), asked


def test_the_partition_says_how_many_cpus() -> None:
    """The question is about the nodes of that partition only."""
    job, asked = asked_sinfo("--gpus-per-node", "2", "--partition", "a100")

    assert job.cpus == 16
    assert [question[-1] for question in asked] == ["--partition=a100"]


@pytest.mark.parametrize("options", ["--exclusive", "--cpus-per-gpu 3", "--gpus-per-node 0"])
def test_sinfo_is_not_asked_without_need(options: str) -> None:
    """Whole nodes have all of their CPUs."""
    assert asked_sinfo(*ONE_GPU, *options.split())[1] == []


def test_without_an_answer_slurm_decides() -> None:
    """The script then takes the number from Slurm's variable."""
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
def test_the_number_is_in_the_last_line(printed: str, queued: QueuedJob) -> None:
    """What a cluster has put around sbatch may print more; several clusters have jobs of one number."""
    job = submission("--gpus-per-node", "1", "train.py")

    assert submit(job, "", lambda *_words: CommandResult(printed, "", 0)) == queued


def test_a_job_without_a_number() -> None:
    """It is queued: the message says how it is found."""
    job = submission("--gpus-per-node", "1", "train.py")

    with pytest.raises(MachineError, match=r"accepted the job, but its ID is unknown: odd\n") as no:
        submit(job, "", lambda *_words: CommandResult("", "odd\n", 0))
    assert no.value.hint == "to find it by its name, train, type squeue"


def test_a_directive_that_has_its_mark() -> None:
    """A second one would make a comment of the line."""
    text = script(*ONE_GPU, "--directive=#SBATCH --x=1", "train.py")

    assert "\n#SBATCH --x=1\n" in text


SECRET = ("--env", "KEY=hush", "train.py")


def test_values_of_variables_are_on_no_command_line() -> None:
    """All users of a node can read those; the script says how to keep it to oneself."""
    text = script(*ONE_GPU, *SECRET)

    assert "export CLUSTERRUN_ENV=KEY=hush\n" in text
    assert "hush" not in " ".join(command(text))
    assert "(umask 077; clusterrun submit --print ... > FILE)" in text
    assert "umask" not in script(*ONE_GPU, "train.py")
    assert complaints(text) == ""


def test_a_job_that_is_not_queued() -> None:
    """In Slurm's own words, which name the option or the controller."""
    job = submission(*ONE_GPU, "--qos", "x", "train.py")
    answer = CommandResult("", "sbatch: error: Batch job submission failed:\n Invalid qos\n", 1)

    with pytest.raises(UsageError) as caught:
        submit(job, "", lambda *_words: answer)

    why = "sbatch: error: Batch job submission failed: Invalid qos"
    assert caught.value.message == f"the job is not queued: {why}"
    assert caught.value.hint == "to see what Slurm is asked for, add --print"


def test_no_answer_in_time() -> None:
    """The job may be queued all the same."""
    job = submission(*ONE_GPU, "--job-name=mine", "train.py")

    with pytest.raises(MachineError) as caught:
        submit(job, "", lambda *_words: CommandResult("", "sbatch: no answer in 60 s", None))

    assert caught.value.message == (
        "it is not known whether the job is queued: sbatch: no answer in 60 s"
    )
    assert caught.value.hint == "to look for it by its name, type squeue --name mine"
