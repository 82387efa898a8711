"""The effect of torchrun's flags on workers, as the workers see it."""

import os
import zipfile

import pytest

from tests.contract.launched import Launcher
from tests.workers.interpreters import oldest_python

SHOWS_ARGUMENTS = """
    import os, sys
    print("rank", os.environ["LOCAL_RANK"], "saw", *sys.argv[1:])
"""

SHOWS_PLACE = """
import __main__, os, sys
print("ran", __name__, __file__ == sys.argv[0], sys.argv[1:], __main__.__dict__ is globals())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("flag", "name"),
    [("--pass-local-rank", "--local-rank"), ("--pass-local-rank=local_rank", "--local_rank")],
)
def test_the_local_rank_as_an_argument(
    clusterrun: Launcher, method: str, flag: str, name: str
) -> None:
    """It comes first, as with torch.distributed.launch, with each start method."""
    ended = clusterrun.script(
        SHOWS_ARGUMENTS, f"--start-method={method}", flag, workers=2, args=("--lr", "1")
    ).ended()

    assert ended.code == 0, ended.err
    for rank in range(2):
        assert f"rank {rank} saw {name}={rank} --lr 1\n" in ended.out


def test_the_local_rank_of_a_module(clusterrun: Launcher) -> None:
    """With ``-m`` the arguments follow the module's name."""
    (clusterrun.folder / "pkg").mkdir()
    (clusterrun.folder / "pkg" / "train.py").write_text("import sys; print('saw', sys.argv[1:])")

    ended = clusterrun.command("--pass-local-rank", "-m", "pkg.train", "x", workers=1).ended()

    assert (ended.code, ended.out) == (0, "saw ['--local-rank=0', 'x']\n")


def test_the_local_rank_on_an_old_interpreter(clusterrun: Launcher) -> None:
    """Scripts for torch 1 run on Pythons of that time."""
    python = oldest_python()
    if python is None:
        pytest.skip("no Python 3.8 here")

    ended = clusterrun.script(
        SHOWS_ARGUMENTS, "--python", python, "--pass-local-rank=local_rank", workers=2
    ).ended()

    assert ended.code == 0, ended.err
    assert "rank 1 saw --local_rank=1\n" in ended.out


@pytest.mark.parametrize("kind", ["file", "folder", "archive"])
def test_run_path(clusterrun: Launcher, kind: str) -> None:
    """A file of any name, a folder or an archive with __main__.py, like runpy.run_path."""
    target = clusterrun.folder / kind
    if kind == "archive":
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("__main__.py", SHOWS_PLACE)
    elif kind == "folder":
        target.mkdir()
        (target / "__main__.py").write_text(SHOWS_PLACE)
    else:
        target.write_text(SHOWS_PLACE)

    ended = clusterrun.command("--run-path", str(target), "x", workers=1).ended()

    own_file = kind == "file"
    assert (ended.code, ended.out) == (0, f"ran __main__ {own_file} ['x'] True\n"), ended.err


def test_a_script_from_standard_input(torchrun: Launcher) -> None:
    """``torchrun -``, with a here-document as for Python."""
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


def test_called_as_torchrun(torchrun: Launcher) -> None:
    """One worker without binding, in a new interpreter; exit codes are clusterrun's."""
    script = """
        import os, sys
        print(os.environ["WORLD_SIZE"], len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(os.getppid())))
        sys.exit(7)
    """

    ended = torchrun.script(script).ended()

    assert (ended.code, ended.out) == (7, "1 True\n"), ended.err


def test_lines_as_torchrun_prints_them(torchrun: Launcher) -> None:
    """They have no prefix; lines that also go to files have role and local rank in front."""
    script = "print('step 1')"

    plain = torchrun.script(script, "--nproc=2").ended()
    teed = torchrun.script(script, "--nproc=2", "--tee=3", "--log-dir=logs").ended()

    assert (plain.code, plain.out) == (0, "step 1\nstep 1\n"), plain.err
    assert sorted(teed.out.splitlines()) == ["[default0]:step 1", "[default1]:step 1"]
