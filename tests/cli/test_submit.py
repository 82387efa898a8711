"""``clusterrun submit``: what it warns of, and what it answers to options that it does not have."""

import os
import subprocess
from pathlib import Path

import pytest
from clusterrun.job.removed_options import REMOVED_SUBMIT_OPTIONS

from tests.contract.launched import COMMAND
from tests.typed import Typed, typed

SUBMIT = ("submit", "--gpus-per-node", "1")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script, in a folder that has nothing else."""
    (tmp_path / "train.py").touch()
    return tmp_path / "train.py"


def submitted(script: Path, *words: str) -> Typed:
    return typed([*words, script.name], {}, script.parent)


def test_an_argument_may_be_any_bytes(script: Path) -> None:
    """What is written is UTF-8, and the shell makes the same bytes of it."""
    done = typed([*SUBMIT, "--print", "train.py", "a\udcff\x1b"], {}, script.parent)
    assert done.code == 0
    assert done.out.endswith(" $'a\\377\\033'\n")


def test_a_directive_that_is_not_text_is_refused(script: Path) -> None:
    """There, sbatch reads no escapes."""
    words = [*SUBMIT, "--print", "--directive", "--comment=a\udcff", "train.py"]
    done = typed(words, {}, script.parent)
    assert done.code == 2
    assert "can't have text that is not UTF-8: '--comment=a\\udcff'\n" in done.err


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ((), "--suspend-before 300"),
        (("--directive=--signal=TERM@60",), ""),
        (("--suspend-before", "300"), ""),
        (("--suspend-hook", "true"), ""),
    ],
)
def test_requeue_without_suspension_gives_a_warning(
    script: Path, options: tuple[str, ...], added: str
) -> None:
    """A job that reaches its time limit is not suspended, and is not put back."""
    done = submitted(script, *SUBMIT, "--requeue", *options, "--print")

    nothing = "clusterrun: --requeue: nothing suspends the job before its time limit"
    assert done.code == 0
    assert done.err == (f"{nothing}, so the limit ends it for good: add {added}\n" if added else "")


@pytest.mark.parametrize("name", sorted(REMOVED_SUBMIT_OPTIONS))
def test_removed_option(script: Path, name: str) -> None:
    """With - or _, and what to use instead."""
    for typed_as in (f"--{name}", f"--{name.replace('_', '-')}"):
        done = submitted(script, *SUBMIT, f"{typed_as}=1", "--print")

        assert done.code == 2
        assert done.err == (
            f"clusterrun: error: there is no option {typed_as} any more\n"
            f"  {REMOVED_SUBMIT_OPTIONS[name]}\n"
        )


@pytest.mark.parametrize(
    ("words", "typed_as", "directive"),
    [
        ("--mem=4G", "--mem", "--mem=4G"),
        ("--mail-type=END", "--mail-type", "--mail-type=END"),
        ("-p all", "-p", "'-p ...'"),
        ("-pall", "-pall", "'-pall ...'"),
        ("--hold train.py", "--hold", "'--hold ...'"),
    ],
)
def test_options_of_sbatch_or_the_script(
    script: Path, words: str, typed_as: str, directive: str
) -> None:
    """Neither is an abbreviation of one of ours; the hint has the option for sbatch."""
    done = submitted(script, *SUBMIT, *words.split(), "--print")

    assert done.code == 2
    assert done.err == (
        f"clusterrun: error: there is no option {typed_as}\n"
        "  if it is sbatch's, use clusterrun's equivalent (clusterrun submit --help), or"
        f" --directive={directive}\n"
        "  if it is the script's, put it after the script\n"
    )


def test_a_file_that_others_can_read(script: Path) -> None:
    """Is warned of if it has values of variables."""
    words = [COMMAND, *SUBMIT, "--print"]
    for mode, env, warned in (
        (0o644, ["--env", "A=b"], True),
        (0o600, ["--env", "A=b"], False),
        (0o644, [], False),
    ):
        with (script.parent / "job.sh").open("w") as file:
            os.fchmod(file.fileno(), mode)
            done = subprocess.run(
                [*words, *env, script],
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=True,
            )
        hint = "use (umask 077; clusterrun submit --print ... > FILE)\n"
        assert done.stderr.endswith(hint) is warned


def test_a_machine_without_slurm(script: Path) -> None:
    """``--print`` works nevertheless."""
    done = typed([*SUBMIT, script.name], {"PATH": os.devnull}, script.parent)
    shown = typed([*SUBMIT, "--print", script.name], {"PATH": os.devnull}, script.parent)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "clusterrun: error: this machine has no Slurm: sbatch is not on PATH\n"
    )
    assert (shown.code, shown.err) == (0, "")


def test_options_after_the_script_are_the_scripts(script: Path) -> None:
    """There is a warning for submit's own options too, unless the script has such an option."""
    late = ("--time", "1:00:00", "--nnodes", "2")
    script.write_text("parser.add_argument('--time')")

    refused = typed(["submit", script.name, "--gpus-per-node", "1"], {}, script.parent)
    done = typed([*SUBMIT, "--print", script.name, *late], {}, script.parent)
    meant = typed([*SUBMIT, "--print", script.name, "--", *late], {}, script.parent)

    nothing = "after train.py goes to train.py, which does not use it: put it before train.py\n"
    assert refused.err.startswith(f"clusterrun: --gpus-per-node {nothing}clusterrun: error: ")
    assert (done.code, done.err) == (0, f"clusterrun: --nnodes {nothing}")
    assert (meant.code, meant.err) == (0, "")


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (["--directive=--array=0-3"], {}),
        (["--directive", "--nice -a 0-3"], {}),
        ([], {"SBATCH_ARRAY_INX": "0-3"}),
    ],
)
def test_array_job_is_not_followed(
    script: Path, options: list[str], environ: dict[str, str]
) -> None:
    """It is several jobs, with an output and an exit code each; nothing is submitted."""
    done = typed([*SUBMIT, "--follow", *options, script.name], environ, script.parent)

    assert done.code == 2
    assert done.err.startswith(
        "clusterrun: error: --follow shows one job, but an array is several\n"
    )
