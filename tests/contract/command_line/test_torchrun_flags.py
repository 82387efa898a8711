"""What workers see of torchrun's flags."""

import os
import zipfile

import pytest

from tests.contract.launched import Launcher
from tests.workers.interpreters import oldest_python

PRINT_ARGUMENTS = """
    import os, sys
    print("rank", os.environ["LOCAL_RANK"], "saw", *sys.argv[1:])
"""

PRINT_MAIN = """
import __main__, os, sys
print("ran", __name__, __file__ == sys.argv[0], sys.argv[1:], __main__.__dict__ is globals())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("flag", "name"),
    [("--pass-local-rank", "--local-rank"), ("--pass-local-rank=local_rank", "--local_rank")],
)
def test_local_rank_as_argument(clusterrun: Launcher, method: str, flag: str, name: str) -> None:
    """It comes first, as with torch.distributed.launch."""
    ended = clusterrun.script(
        PRINT_ARGUMENTS, f"--start-method={method}", flag, workers=2, args=("--lr", "1")
    ).ended()

    assert ended.code == 0, ended.err
    for rank in range(2):
        assert f"rank {rank} saw {name}={rank} --lr 1\n" in ended.out


def test_local_rank_as_argument_of_a_module(clusterrun: Launcher) -> None:
    (clusterrun.folder / "pkg").mkdir()
    (clusterrun.folder / "pkg" / "train.py").write_text("import sys; print('saw', sys.argv[1:])")

    ended = clusterrun.command("--pass-local-rank", "-m", "pkg.train", "x", workers=1).ended()

    assert (ended.code, ended.out) == (0, "saw ['--local-rank=0', 'x']\n")


def test_local_rank_as_argument_on_python_3_8(clusterrun: Launcher) -> None:
    """Scripts for torch 1 need old Pythons."""
    python = oldest_python()
    if python is None:
        pytest.skip("no Python 3.8 here")

    ended = clusterrun.script(
        PRINT_ARGUMENTS, "--python", python, "--pass-local-rank=local_rank", workers=2
    ).ended()

    assert ended.code == 0, ended.err
    assert "rank 1 saw --local_rank=1\n" in ended.out


@pytest.mark.parametrize("kind", ["file", "folder", "archive"])
def test_run_path(clusterrun: Launcher, kind: str) -> None:
    """A file with any name, or a folder or archive with __main__.py, as with runpy.run_path."""
    target = clusterrun.folder / kind
    if kind == "archive":
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("__main__.py", PRINT_MAIN)
    elif kind == "folder":
        target.mkdir()
        (target / "__main__.py").write_text(PRINT_MAIN)
    else:
        target.write_text(PRINT_MAIN)

    ended = clusterrun.command("--run-path", str(target), "x", workers=1).ended()

    own_file = kind == "file"
    assert (ended.code, ended.out) == (0, f"ran __main__ {own_file} ['x'] True\n"), ended.err


def test_script_from_standard_input(torchrun: Launcher) -> None:
    """``torchrun -`` with a here-document."""
    script, ours = os.pipe()
    os.write(ours, b"import sys; print('ran', __name__, sys.argv); sys.exit(3)")
    os.close(ours)

    ended = torchrun.command("-", "x", stdin=script).ended()

    os.close(script)
    assert (ended.code, ended.out) == (3, "ran __main__ ['-', 'x']\n")


def test_role_and_signals(clusterrun: Launcher) -> None:
    script = """
        import os
        print(os.environ["ROLE_NAME"], os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"])
    """

    ended = clusterrun.script(
        script, "--role=trainer", "--signals-to-handle=SIGTERM,SIGUSR1", workers=1
    ).ended()

    assert (ended.code, ended.out) == (0, "trainer SIGTERM,SIGUSR1\n")


def test_torchrun_defaults(torchrun: Launcher) -> None:
    """One worker, not bound, in a new interpreter; exit codes are clusterrun's."""
    script = """
        import os, sys
        print(os.environ["WORLD_SIZE"], len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(os.getppid())))
        sys.exit(7)
    """

    ended = torchrun.script(script).ended()

    assert (ended.code, ended.out) == (7, "1 True\n"), ended.err


def test_torchrun_line_prefix(torchrun: Launcher) -> None:
    """Only lines that also go to files have a prefix, with role and local rank."""
    script = "print('step 1')"

    plain = torchrun.script(script, "--nproc=2").ended()
    teed = torchrun.script(script, "--nproc=2", "--tee=3", "--log-dir=logs").ended()

    assert (plain.code, plain.out) == (0, "step 1\nstep 1\n"), plain.err
    assert sorted(teed.out.splitlines()) == ["[default0]:step 1", "[default1]:step 1"]
