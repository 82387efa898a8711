"""What flags and variables set, with origins."""

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import JobFile, from_variables, unknown_variables, value_of

from tests.command_lines import command_line


def test_alias_sets_the_option() -> None:
    """The origin is the typed name."""
    flags = command_line({"rdzv_id": "7"}).options
    variables = from_variables({"PET_RDZV_ID": "8"}, "PET_")

    assert flags == {"run_id": (Setting("7", "--rdzv-id"),)}
    assert variables == {"run_id": (Setting("8", "PET_RDZV_ID"),)}


def test_alias_variable_wins_over_name() -> None:
    layer = from_variables({"PET_RDZV_ID": "theirs", "PET_RUN_ID": "ours"}, "PET_")

    assert value_of("run_id", [layer]) == Setting("theirs", "PET_RDZV_ID")


def test_empty_variables_are_unset() -> None:
    assert from_variables({"CLUSTERRUN_NNODES": "", "CLUSTERRUN_ENV": "\n"}, "CLUSTERRUN_") == {}


def test_repeated_option_has_one_value_per_line() -> None:
    """Values may contain spaces, commas and other separators."""
    settings = from_variables({"CLUSTERRUN_ENV": "A=1,2\nB=x y\n"}, "CLUSTERRUN_")
    odd = from_variables({"CLUSTERRUN_ENV": "A=x\u2028y\x85z\r"}, "CLUSTERRUN_")

    assert settings == {
        "env": (Setting("A=1,2", "CLUSTERRUN_ENV"), Setting("B=x y", "CLUSTERRUN_ENV"))
    }
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
def test_unknown_variable_has_a_warning(name: str, nearest: str) -> None:
    """The warning has the most similar known variable."""
    environ = {name: "1", "CLUSTERRUN_MASTER_PORT": "1", "PET_RDZV_ID": "1", "CLUSTERRUN_X": ""}

    assert tuple(unknown_variables(environ)) == (
        f"{name} is not a variable that clusterrun reads{nearest}",
    )


def test_job_file_without_its_program() -> None:
    """no_python belongs to the program if the file has one."""
    settings = {
        "no_python": (Setting("true", "j:1 no_python"),),
        "nnodes": (Setting("1", "j:2 nnodes"),),
    }
    with_program = JobFile(settings, Setting(("run.sh",), "j:3 script"))
    options_only = JobFile(settings, Setting((), "default"))

    assert set(with_program.without_program()) == {"nnodes"}
    assert set(options_only.without_program()) == {"no_python", "nnodes"}


def test_command_line_is_quoted() -> None:
    """Options stay in the typed order."""
    typed = command_line(
        {"nnodes": "2", "verbose": True, "env": ("A=1", "B=x y")}, "train.py", "--lr"
    )

    assert typed.quoted() == "clusterrun --nnodes 2 --verbose --env A=1 --env 'B=x y' train.py --lr"


def test_added_flags_come_before_the_script() -> None:
    """After the script they would be its arguments."""
    typed = command_line({"nnodes": "2"}, "train.py")

    line = typed.quoted("--node-rank", "0", before=("srun", "-c", "8"))

    assert line == "srun -c 8 clusterrun --nnodes 2 --node-rank 0 train.py"
