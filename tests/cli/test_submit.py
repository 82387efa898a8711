"""``clusterrun submit``: what it warns of, and what it answers to options that it does not have."""

from pathlib import Path

import pytest

from tests.typed import Typed, typed

SLURM = ("submit", "--to", "slurm", "--gpus-per-node", "1")
PODS = ("submit", "--to", "kubernetes", "--image", "x", "--gpus-per-node", "1")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script, in a folder that has nothing else."""
    (tmp_path / "train.py").touch()
    return tmp_path / "train.py"


def submitted(script: Path, *words: str) -> Typed:
    return typed([*words, script.name], {}, script.parent)


def test_bytes_that_are_no_text_are_refused(script: Path) -> None:
    """A name of a file may be any bytes, and what is written is UTF-8."""
    for words in (SLURM, PODS):
        done = typed([*words, "--print", "train.py", "a\udcff"], {}, script.parent)
        assert done.code == 2
        assert "can't have text that is not UTF-8: 'a\\udcff'\n" in done.err


@pytest.mark.parametrize(
    ("options", "type_too"),
    [
        ((), "--suspend-before 300, too"),
        (("--directive=--signal=TERM@60",), ""),
        (("--suspend-before", "300"), ""),
        (("--suspend-hook", "true"), ""),
    ],
)
def test_a_requeue_that_nothing_asks_for_is_named(
    script: Path, options: tuple[str, ...], type_too: str
) -> None:
    """A job that reaches its time limit is not suspended, and is not put back."""
    done = submitted(script, *SLURM, "--requeue", *options, "--print")

    nothing = "clusterrun: --requeue: nothing suspends the job before its time limit"
    assert done.code == 0
    assert done.err == (f"{nothing}, which ends it for good: type {type_too}\n" if type_too else "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            "--mem 4G",
            "type --memory-per-gpu SIZE, of which a node has one for each GPU, or --directive=--mem=4G",
        ),
        ("-p all", "type --partition all"),
        ("-pall", "type --partition all"),
        ("--gres gpu:4", "type --gpus-per-node 4"),
        ("--gres=gpu:h100:4", "type --gpus-per-node h100:4"),
        ("--gpus 8", "type --gpus-per-node N: 8 of sbatch's is for all nodes together"),
        ("-N 2", "type --nnodes 2"),
        ("-N 2-4", "type --nnodes 2:4"),
        ("-x n1", "type --directive=--exclude=n1"),
        ("-xn1", "type --directive=--exclude=n1"),
        ("-x=n1", "type --directive=--exclude=n1"),
        ("-Ca=b", "type --constraint a=b"),
        ("-H train.py", "type --directive=--hold"),
        ("--no-requeue train.py", "type --directive=--no-requeue"),
        ("--nice=5", "type --directive=--nice=5"),
        ("--contiguous --hold", "type --directive=--contiguous"),
        ("--comment=", "type --directive=--comment=VALUE"),
        ("--comment it's", """type --directive='--comment=it'"'"'s'"""),
        ("--mem-per-gpu 64000", "type --memory-per-gpu 64000M"),
        ("--gres=gpu", "type --gpus-per-node 1"),
        ("--gres=gpu:2,nvme:1", "type --gpus-per-node N for GPUs, --directive=--gres=NAME:N for"),
        ("--ntasks-per-gpu=1", "leave it out: one agent on each node starts"),
        ("--container-image=a.sqsh", "type --image a.sqsh"),
        ("--mpi=pmix", "leave it out: the script that submit writes starts srun"),
        ("-l train.py", "leave it out: the script that submit writes starts srun"),
        ("-W train.py", "type --follow > /dev/null"),
        ("--exclude=n1", "type --directive=--exclude=n1"),
        ("--nodelist n1", "type --directive=--nodelist=n1"),
        ("--array 0-15%4", "type --directive=--array=0-15%4\n"),
        ("-a 0-15%4", "type --directive=--array=0-15%4\n"),
        ("--modules cuda/12.4,nccl", "type --setup 'module load cuda/12.4 nccl'"),
        ("--save job.sh", "type --print > job.sh"),
        ("--wait", "type --follow > /dev/null"),
        ("--node-selector pool=h100", "type --directive='nodeSelector: {pool: h100}'"),
        ("--dependency=7", "type --directive=--dependency=afterok:7\n"),
        ("-d 7", "type --directive=--dependency=afterok:7\n"),
        ("--dependency singleton", "type --directive=--dependency=singleton\n"),
        ("--signal USR1@300", "type --directive=--signal=USR1@300\n"),
    ],
)
def test_what_is_typed_instead(script: Path, words: str, hint: str) -> None:
    """Of sbatch's own options, and of those that clusterrun 0.1 had: the whole line."""
    done = submitted(script, *SLURM, *words.split(), "--print")

    assert done.code == 2
    assert done.err.startswith("clusterrun: error: there is no option ")
    assert f"\n  {hint}" in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--array=0-3", "type --directive=--array=0-3; for PBS --directive='-J 0-3'"),
        ("--array=0-3 --to=kubernetes", "submit once for each number"),
        ("--to pbs --array=0-3", "type --directive='-J 0-3'"),
        ("--to kubernetes --output x", "leave it out: kubectl logs has what pods print"),
        ("--to lsf --output x", "type --directive='-o x'"),
        ("--to kubernetes --exclude=n1", "leave it out, or type what a pod has for it"),
        ("--to flux --exclude=n1", "type what Flux has for it: --directive='OPTION VALUE'"),
        ("--to lsf -q normal", "type the option of clusterrun for it"),
        ("--to lsf -gpu num=4", "type the option of clusterrun for it"),
        ("--to lsf --mem 4G", "type --memory-per-gpu SIZE, of which a node has one for each GPU\n"),
    ],
)
def test_what_is_typed_for_other_schedulers(script: Path, words: str, hint: str) -> None:
    """No directive of sbatch's where another scheduler is asked."""
    done = submitted(script, "submit", *words.split())

    assert done.code == 2
    assert f"\n  {hint}" in done.err


def test_names_that_submit_has_too(script: Path) -> None:
    """With _ for -; and an option of the script is the script's, whatever sbatch has."""
    script.write_text("parser.add_argument('--input')")

    done = submitted(script, *SLURM, "--job_name", "a", "--print")
    refused = submitted(script, *SLURM, "--input", "a.csv")

    assert (done.code, refused.code) == (0, 2)
    assert "--job-name=a\n" in done.out
    assert "if it is an option of train.py, put it after train.py:" in refused.err


def test_options_after_the_script_are_the_scripts(script: Path) -> None:
    """A warning says so of submit's own, too, unless the script has such an option."""
    late = ("--time", "1:00:00", "--nnodes", "2")
    script.write_text("parser.add_argument('--time')")

    refused = typed(
        ["submit", "--to", "slurm", script.name, "--gpus-per-node", "1"], {}, script.parent
    )
    done = typed([*SLURM, "--print", script.name, *late], {}, script.parent)
    meant = typed([*SLURM, "--print", script.name, "--", *late], {}, script.parent)

    nothing = "after train.py goes to train.py, which does not use it: type it before train.py\n"
    assert refused.err.startswith(f"clusterrun: --gpus-per-node {nothing}clusterrun: error: ")
    assert (done.code, done.err) == (0, f"clusterrun: --nnodes {nothing}")
    assert (meant.code, meant.err) == (0, "")


def test_a_directive_may_begin_as_an_option_of_ours(script: Path) -> None:
    """``--mem`` is sbatch's, though it abbreviates --memory-per-gpu."""
    done = submitted(script, *SLURM, "--directive", "--mem=4G", "--print")

    assert done.code == 0
    assert "#SBATCH --mem=4G\n" in done.out


def test_a_time_by_sbatchs_letter(script: Path) -> None:
    """To torchrun, -t is --tee."""
    done = submitted(script, *SLURM, "-t", "10", "--print")

    assert done.code == 2
    assert "for a time limit, type --time 10m or --time 2:00:00\n" in done.err
