"""--exec: the command becomes its only worker."""

import os

import pytest

from tests.captured import captured
from tests.contract.launched import Launcher


def test_process_is_the_worker(clusterrun: Launcher) -> None:
    """It has no parent and no child of clusterrun."""
    job = clusterrun.script(
        """
        import os
        print("pid", os.getpid(), flush=True)
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"])
        raise SystemExit(7)
        """,
        "--exec",
        workers=1,
    )

    assert job.numbers("pid") == [job.process.pid]
    ended = job.ended()
    assert (ended.code, ended.out.splitlines()[1], ended.err) == (7, "0 1 127.0.0.1", "")


def test_worker_ignores_no_signal_and_gets_no_token(clusterrun: Launcher) -> None:
    ended = clusterrun.command(
        "--exec",
        "--no-python",
        "sh",
        "-c",
        "grep SigIgn /proc/self/status; echo token=$CLUSTERRUN_TOKEN",
        workers=1,
        environ={"CLUSTERRUN_TOKEN": "a secret of ours"},
    ).ended()

    assert ended.out.split() == ["SigIgn:", "0" * 16, "token="]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_tasks_of_a_slurm_step_rendezvous(clusterrun: Launcher) -> None:
    """As with ``srun -n2 clusterrun --exec train.py``: rank, address and port come from the step."""
    # No other test has this job id, from which the port is computed.
    step = captured("shared.1") | {"SLURM_JOB_ID": str(os.getpid())}
    script = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(total)
        print("sum", int(total), flush=True)
        print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
        dist.destroy_process_group()
        """
    tasks = [
        clusterrun.script(
            script,
            "--exec",
            environ=step
            | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "CUDA_VISIBLE_DEVICES": ""},
        )
        for rank in "01"
    ]

    printed = [task.ended(120).out.splitlines() for task in tasks]

    assert printed == [["sum 3", "local rank 0 of 2"], ["sum 3", "local rank 1 of 2"]]


def test_program_that_can_not_be_executed(clusterrun: Launcher) -> None:
    program = clusterrun.folder / "program"
    program.write_text("#!/nowhere/sh\n")
    program.chmod(0o755)

    ended = clusterrun.command("--exec", "--no-python", str(program), workers=1).ended()

    assert ended.code == 126
    assert ended.err == (
        f"clusterrun: {program} can't be executed: No such file or directory:"
        " /nowhere/sh, which its first line names\n"
    )
