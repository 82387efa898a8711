"""The line that a hint tells to type."""

from clusterrun.sources.command_line import CommandLine


def test_every_kind_of_flag_is_spelled() -> None:
    """In the order typed, quoted for a shell."""
    typed = CommandLine(
        {"nnodes": "2", "verbose": True, "env": ("A=1", "B=x y")}, ("train.py", "--lr")
    )

    assert typed.line() == "clusterrun --nnodes 2 --verbose --env A=1 --env 'B=x y' train.py --lr"


def test_more_flags_stand_before_the_script() -> None:
    """Behind it they would be the script's."""
    typed = CommandLine({"nnodes": "2"}, ("train.py",))

    line = typed.line("--node-rank", "0", before=("srun", "-c", "8"))

    assert line == "srun -c 8 clusterrun --nnodes 2 --node-rank 0 train.py"


def test_nothing_typed_but_the_command() -> None:
    """All may be said by variables."""
    assert CommandLine({}, ()).line() == "clusterrun"
