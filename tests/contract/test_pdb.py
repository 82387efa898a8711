"""``--pdb``: a debugger opens on the terminal where the first rank fails."""

import pytest

from tests.contract.launched import COMMAND
from tests.contract.shell import Shell

ALL_FAIL = """
import atexit, os

def fails(number):
    raise ValueError(f"bad {number}")

atexit.register(print, "exit handler of", os.environ["RANK"])
fails(int(os.environ["RANK"]) + 41)
"""


@pytest.mark.needs("bash")
def test_pdb_opens_where_the_first_rank_fails(shell: Shell) -> None:
    """The other rank fails, too, and opens no debugger."""
    shell.run(ALL_FAIL, "--nproc-per-node", "2", "--pdb", "--pass-local-rank")
    rank = int(shell.expect(r"clusterrun: rank (\d) has failed").group(1))
    shell.expect(r"\(Pdb\) ")

    shell.type("p 'the number is', number")
    # Output of the other rank may come before the next prompt.
    shell.expect(rf"\('the number is', {41 + rank}\)")
    shell.type("p __import__('sys').argv")
    shell.expect(rf"script.py', '--local-rank={rank}'\]")
    shell.type("up")
    shell.expect(r"script.py\(8\)<module>")
    shell.type("q")

    shell.expect(f"exit handler of {rank}")
    shell.expect(rf"rank {rank} on \S+ failed: ValueError: bad {41 + rank}")
    assert shell.exit_code() == 1
    assert shell.left() == []


@pytest.mark.needs("bash")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_ctrl_c_at_pdb_ends_the_job(shell: Shell, workers: str) -> None:
    """No grace period passes."""
    shell.run(ALL_FAIL, "--nproc-per-node", workers, "--pdb", "--shutdown-timeout", "60")
    shell.expect(r"\(Pdb\) ")

    shell.press("Ctrl-C")

    assert shell.exit_code() == 130
    assert shell.left() == []


@pytest.mark.long
@pytest.mark.needs("bash")
def test_pdb_in_module_of_single_worker(shell: Shell) -> None:
    """The single worker has the terminal. Ctrl-D leaves pdb."""
    (shell.folder / "package").mkdir()
    (shell.folder / "package/module.py").write_text("import sys\nprint(sys.path[0])\n1 / 0\n")

    shell.type(f"{COMMAND} --nproc-per-node 1 --pdb -m package.module")

    shell.expect(str(shell.folder))
    shell.expect(r"module.py\(3\)<module>")
    shell.expect(r"\(Pdb\) ")
    shell.press("Ctrl-D")
    assert shell.exit_code() == 1


@pytest.mark.long
@pytest.mark.needs("bash")
def test_pdb_does_not_open_for_exits_and_ctrl_c(shell: Shell) -> None:
    shell.run("import sys; sys.exit(3)", "--nproc-per-node", "2", "--pdb")
    assert shell.exit_code() == 3

    waits = "import time\nprint('begun')\nwhile True: time.sleep(0.1)"
    shell.run(waits, "--nproc-per-node", "2", "--pdb")
    shell.expect("begun")
    shell.press("Ctrl-C")
    assert shell.exit_code() == 130
