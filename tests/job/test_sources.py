"""What flags and variables say, as text with an origin."""

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import JobFile, from_variables, unknown_variables, value_of

from tests.command_lines import command_line


def test_an_alias_says_the_same_option() -> None:
    """Torchrun's spelling lands in our name, and the origin is what was typed."""
    flags = command_line({"rdzv_id": "7"}).options
    variables = from_variables({"PET_RDZV_ID": "8"}, "PET_")

    assert flags == {"run_id": (Setting("7", "--rdzv-id"),)}
    assert variables == {"run_id": (Setting("8", "PET_RDZV_ID"),)}


def test_of_two_variables_for_one_option_the_alias_wins() -> None:
    """Both are read, and the one that torchrun has is the last."""
    layer = from_variables({"PET_RDZV_ID": "theirs", "PET_RUN_ID": "ours"}, "PET_")

    assert value_of("run_id", [layer]) == Setting("theirs", "PET_RDZV_ID")


def test_empty_variables_say_nothing() -> None:
    """``CLUSTERRUN_NNODES= clusterrun ...`` is how a shell says no."""
    assert from_variables({"CLUSTERRUN_NNODES": "", "CLUSTERRUN_ENV": "\n"}, "CLUSTERRUN_") == {}


def test_a_repeated_option_has_a_line_each() -> None:
    """Values may hold spaces and commas, so lines divide them."""
    said = from_variables({"CLUSTERRUN_ENV": "A=1,2\nB=x y\n"}, "CLUSTERRUN_")
    odd = from_variables({"CLUSTERRUN_ENV": "A=x\u2028y\x85z\r"}, "CLUSTERRUN_")

    assert said == {"env": (Setting("A=1,2", "CLUSTERRUN_ENV"), Setting("B=x y", "CLUSTERRUN_ENV"))}
    assert odd == {"env": (Setting("A=x\u2028y\x85z\r", "CLUSTERRUN_ENV"),)}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("CLUSTERRUN_NPROC", "; did you mean CLUSTERRUN_NPROC_PER_NODE?"),
        ("CLUSTERRUN_NNODE", "; did you mean CLUSTERRUN_NNODES?"),
        ("CLUSTERRUN_COLOUR_OF_SKY", ""),
        ("PET_NPROC", "; did you mean PET_NPROC_PER_NODE?"),
        ("PET_TOKEN", "; did you mean PET_TOKEN_FILE?"),
    ],
)
def test_strange_variables_are_warned_of(name: str, nearest: str) -> None:
    """An unknown CLUSTERRUN_ or PET_ variable is told with the nearest known one."""
    environ = {name: "1", "CLUSTERRUN_MASTER_PORT": "1", "PET_RDZV_ID": "1", "CLUSTERRUN_X": ""}

    assert tuple(unknown_variables(environ)) == (
        f"{name} is not a variable that clusterrun reads{nearest}",
    )


def test_a_file_without_its_program() -> None:
    """How the file's program is run goes with it, but only if there is one."""
    said = {
        "no_python": (Setting("true", "j:1 no_python"),),
        "nnodes": (Setting("1", "j:2 nnodes"),),
    }
    with_program = JobFile(said, Setting(("run.sh",), "j:3 script"))
    options_only = JobFile(said, Setting((), "default"))

    assert set(with_program.without_program()) == {"nnodes"}
    assert set(options_only.without_program()) == {"no_python", "nnodes"}


def test_every_kind_of_flag_is_spelled() -> None:
    """In the order typed, quoted for a shell."""
    typed = command_line(
        {"nnodes": "2", "verbose": True, "env": ("A=1", "B=x y")}, "train.py", "--lr"
    )

    assert typed.quoted() == "clusterrun --nnodes 2 --verbose --env A=1 --env 'B=x y' train.py --lr"


def test_more_flags_stand_before_the_script() -> None:
    """Behind it they would be the script's."""
    typed = command_line({"nnodes": "2"}, "train.py")

    line = typed.quoted("--node-rank", "0", before=("srun", "-c", "8"))

    assert line == "srun -c 8 clusterrun --nnodes 2 --node-rank 0 train.py"
