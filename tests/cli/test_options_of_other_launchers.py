"""Options of other launchers: whose they are and what to type, never an option that looks alike."""

from pathlib import Path

import pytest

from tests.cli.door import (
    TORCHRUN_FLAGS,
    ExitCode,
    UsageError,
    foreign_option,
    full_name,
    split,
)

PER_NODE = "type --nproc-per-node N: the number of workers on each node"
SLURMS = "it is for Slurm only"
IN_ACCELERATOR = "set it in the script, in Accelerator(...) or its plugins"
IN_TRAINER = "set it in the script, in Trainer(...) or Fabric(...)"
NEEDLESS = "leave it out: clusterrun needs no such option"


def before(starters: str, line: str) -> str:
    """Return the hint for an option of what starts clusterrun on each node."""
    return f"\nan option of {starters} goes before clusterrun:\n  {line}"


@pytest.mark.parametrize(
    ("line", "whose", "hint"),
    [
        ("--num_processes 8 train.py", "accelerate has", PER_NODE),
        ("--num-machines=2 train.py", "accelerate has", "type --nnodes N"),
        ("--machine_rank 1 train.py", "accelerate has", "type --node-rank R"),
        ("--main_process_ip n0 train.py", "accelerate has", "type --master-addr HOST"),
        ("--main_process_port 1 train.py", "accelerate has", "type --master-port PORT"),
        ("--gpu_ids 0,1 train.py", "accelerate has", "type --devices 0,1: the GPUs of this node"),
        (
            "--mixed_precision bf16 train.py",
            "accelerate has",
            f"{IN_ACCELERATOR}, or type --env ACCELERATE_MIXED_PRECISION=bf16",
        ),
        (
            "--config_file default.yaml train.py",
            "accelerate has",
            (
                "clusterrun does not read it: type its values as options, or write them to a job file"
                " (--config FILE)"
            ),
        ),
        (
            "--multi_gpu train.py",
            "accelerate has",
            "leave it out: one worker for each visible GPU is the default",
        ),
        ("--use_fsdp train.py", "accelerate has", IN_ACCELERATOR),
        ("--nprocs 2 train.py", "torch.multiprocessing.spawn has", PER_NODE),
        ("--dynamo_backend no train.py", "accelerate has", IN_ACCELERATOR),
        (
            "-np 2 train.py",
            "mpirun has",
            PER_NODE + before("mpirun", "mpirun -np 2 clusterrun [OPTIONS] train.py"),
        ),
        (
            "-H n0,n1 train.py",
            "deepspeed and mpirun have",
            "deepspeed's -H: type --hostfile FILE\nmpirun's -H: type --hosts HOST,HOST"
            + before("mpirun", "mpirun -H n0,n1 clusterrun [OPTIONS] train.py"),
        ),
        (
            "--host n0 train.py",
            "mpirun has",
            "type --hosts HOST,HOST"
            + before("mpirun", "mpirun --host n0 clusterrun [OPTIONS] train.py"),
        ),
        *(
            (
                f"{option} n0 train.py",
                "mpirun has",
                "type --hosts HOST,HOST"
                + before("mpirun", f"mpirun {option} n0 clusterrun [OPTIONS] train.py"),
            )
            for option in ("-host", "-hosts")
        ),
        (
            "-hostfile hosts train.py",
            "mpirun has",
            "type --hostfile FILE"
            + before("mpirun", "mpirun -hostfile hosts clusterrun [OPTIONS] train.py"),
        ),
        (
            "--oversubscribe -v train.py",
            "mpirun has",
            NEEDLESS + before("mpirun", "mpirun --oversubscribe clusterrun [OPTIONS] train.py"),
        ),
        (
            "--mca btl tcp train.py",
            "mpirun has",
            "leave it out: clusterrun does not use MPI"
            + before("mpirun", "mpirun --mca btl tcp clusterrun [OPTIONS] train.py"),
        ),
        (
            "-x LD_LIBRARY_PATH train.py",
            "mpirun and srun have",
            f"mpirun's -x: type --env NAME=VALUE\nsrun's -x: {SLURMS}"
            + before("mpirun or srun", "srun -x LD_LIBRARY_PATH clusterrun [OPTIONS] train.py"),
        ),
        (
            "-N2 train.py",
            "mpirun and srun have",
            f"mpirun's -N: {PER_NODE}\nsrun's -N: type --nnodes N"
            + before("mpirun or srun", "srun -N2 clusterrun [OPTIONS] train.py"),
        ),
        (
            "-n 2 train.py",
            "mpirun and srun have",
            PER_NODE + before("mpirun or srun", "srun -n 2 clusterrun [OPTIONS] train.py"),
        ),
        (
            "--gpus 4 train.py",
            "Lightning and srun have",
            PER_NODE + before("srun", "srun --gpus 4 clusterrun [OPTIONS] train.py"),
        ),
        (
            "--gpus=4 train.py",
            "Lightning and srun have",
            PER_NODE + before("srun", "srun --gpus=4 clusterrun [OPTIONS] train.py"),
        ),
        (
            "--cpus-per-task 8 train.py",
            "srun has",
            SLURMS + before("srun", "srun --cpus-per-task 8 clusterrun [OPTIONS] train.py"),
        ),
        ("--num_gpus 8 train.py", "deepspeed has", PER_NODE),
        (
            "--include n0:0,1 train.py",
            "deepspeed has",
            "type --hosts HOST,HOST for the nodes, --devices 0,1 for the GPUs of each",
        ),
        ("--num_nodes 2 train.py", "deepspeed and Lightning have", "type --nnodes N"),
        ("--main-address n0 train.py", "Lightning has", "type --master-addr HOST"),
        ("--accelerator gpu train.py", "Lightning has", IN_TRAINER),
        ("--strategy ddp -m train", "Lightning has", IN_TRAINER),
    ],
)
def test_an_option_of_another_launcher(line: str, whose: str, hint: str) -> None:
    """It is named as theirs, with what to type here, and the whole line where it stands before."""
    typed = line.partition(" ")[0].partition("=")[0].removesuffix("2")

    with pytest.raises(UsageError) as caught:
        split(line.split())

    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.message == f"there is no option {typed}; {whose} one"
    assert caught.value.hint == hint


def test_an_option_that_the_script_has_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the script's text has it, the line with the option after the script is shown, too."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("splitr.add_argument('--mixed_precision')\n")

    with pytest.raises(UsageError) as caught:
        split(["--mixed-precision", "bf16", "train.py"])

    assert caught.value.hint.splitlines()[1:] == [
        "an option of train.py goes after it:",
        "  clusterrun [OPTIONS] train.py --mixed-precision",
    ]


@pytest.mark.parametrize("name", TORCHRUN_FLAGS)
def test_abbreviations_of_torchruns_stay_its_own(name: str) -> None:
    """``--np`` is torchrun's --nproc-per-node, though Open MPI has an option of that name."""
    cuts = (name[:end] for end in range(2, len(name)))
    clear = [cut for cut in cuts if sum(known.startswith(cut) for known in TORCHRUN_FLAGS) == 1]

    meant = {full_name(cut, TORCHRUN_FLAGS) for cut in clear if cut not in TORCHRUN_FLAGS}

    assert meant <= {name}
    assert foreign_option("np") is not None
    assert full_name("np") == "nproc-per-node"
