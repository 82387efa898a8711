"""Texts that options accept, and errors that no transcript can show."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.options import OPTIONS, NumaBinding
from clusterrun.job.values import NodeRange, RankSet, Std, StreamChoice, WorkerCount
from hypothesis import given
from hypothesis import strategies as st

from tests.own_options import OPTIONS_OF_COMMANDS

ROWS = OPTIONS | OPTIONS_OF_COMMANDS

VALID: Mapping[str, Mapping[str, object]] = {
    "nnodes": {
        "1": NodeRange(1, 1),
        "16": NodeRange(16, 16),
        "16:16": NodeRange(16, 16),
        "2:16": NodeRange(2, 16),
    },
    "node_rank": {"0": 0, "15": 15},
    "nproc_per_node": {
        "xpu": WorkerCount.GPU,
        "8": 8,
        "010": 10,
        "auto": WorkerCount.AUTO,
        "gpu": WorkerCount.GPU,
        "cpu": WorkerCount.CPU,
    },
    "max_restarts": {"0": 0, " 3\n": 3},
    "master_port": {"29500": 29500, "65535": 65535, "0": None},
    "rdzv_timeout": {"25": 25.0, "0": 0.0, "0.5": 0.5},
    "heartbeat_timeout": {"0.5": 0.5, "15": 15.0},
    "no_restart_exit_codes": {"3": (3,), "5-7, 3,6": (3, 5, 6, 7), "1-255": tuple(range(1, 256))},
    "suspend_exit_code": {"1": 1, "255": 255},
    "suspend_signal": {"USR1": 10, "sigusr2": 12, "10": 10, "35": 35},
    "tee": {
        "0": StreamChoice(Std.NONE, {}),
        "3": StreamChoice(Std.ALL, {}),
        "0:3,1:0,12:2": StreamChoice(Std.NONE, {0: Std.ALL, 1: Std.NONE, 12: Std.ERR}),
    },
    "ranks": {"0,2": RankSet(((0, 0), (2, 2))), "8-15, 0": RankSet(((8, 15), (0, 0)))},
    "log_line_prefix_template": {"[${rank}]: ": "[${rank}]: ", "": ""},
    "duplicate_stdout_filters": {
        "loss": ("loss",),
        "a,b c": ("a", "b c"),
        "1,,000,2": ("1,000", "2"),
    },
    "pdb": {"1": True, "Yes": True, "true": True, "0": False, "no": False, "FALSE": False},
    "numa_binding": {"near": NumaBinding.NEAR, "none": NumaBinding.NONE},
    "master_addr": {
        "node-7.cluster": "node-7.cluster",
        "10.0.0.1": "10.0.0.1",
        "fe80::1": "fe80::1",
        "[fe80::1]": "fe80::1",
    },
    "rdzv_endpoint": {
        "node-7": "node-7",
        "node-7:29500": "node-7:29500",
        "10.0.0.1:0": "10.0.0.1:0",
        "[::1]:29500": "[::1]:29500",
        "[::1]": "::1",
        "fe80::1%eth0": "fe80::1%eth0",
    },
    "run_id": {"digits 7": "digits 7", "r" * 200: "r" * 200},
    "log_dir": {"runs/a b": "runs/a b"},
    "machine_root": {".": Path(), __file__: Path(__file__)},
    "topo.capture": {"m.json": Path("m.json"), "a/m.json": Path("a/m.json")},
    "env": {"A=1": ("A", "1"), "_a_2=": ("_a_2", ""), "A=x=y z": ("A", "x=y z")},
    "rdzv_backend": {"static": "static", "c10d": "c10d"},
    "rdzv_conf": {
        "": (),
        " a=1 , b = 2=3": (("a", "1"), ("b", "2=3")),
        "'a=1,b=2'": (("a", "1"), ("b", "2")),
        '"a=1"': (("a", "1"),),
        "a='1', b=\"2\"": (("a", "1"), ("b", "2")),
        "''": (),
    },
    "signals_to_handle": {"SIGTERM, SIGUSR1": "SIGTERM,SIGUSR1", "": ""},
    "role": {"trainer": "trainer"},
    "pass_local_rank": {
        "local_rank": "local_rank",
        "local-rank": "local-rank",
        "1": "local-rank",
        "no": "",
    },
}
"""By text."""

INVALID = [
    ("nproc_per_node", "9" * 5000, "is not a number of workers"),
    ("log_line_prefix_template", "a\nb", "is more than one line"),
    ("duplicate_stdout_filters", "a\n", "has an empty text or a line break in it"),
    ("hosts", "\udcff", "is not a list of hosts"),
    ("hosts", "a\nb", "is not a list of hosts"),
    ("run_id", "a\nb", "can't be a run id, which also names a folder"),
]
"""Texts that no line of a transcript can hold, and what follows each in the message."""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [(name, text, value) for name, values in VALID.items() for text, value in values.items()],
)
def test_valid_text(name: str, text: str, value: object) -> None:
    assert ROWS[name].value.read(text) == value


@pytest.mark.parametrize(("name", "text", "problem"), INVALID)
def test_invalid_text(name: str, text: str, problem: str) -> None:
    """All other errors are in transcripts: tests/contract/command_line/mistakes."""
    with pytest.raises(UsageError) as caught:
        ROWS[name].value.read(text)

    assert caught.value.message == f"{text!r} {problem}"
    assert caught.value.hint


@given(text=st.text(), name=st.sampled_from(sorted(ROWS)))
def test_any_text_is_a_value_or_a_usage_error(text: str, name: str) -> None:
    """The error has a hint."""
    try:
        ROWS[name].value.read(text)
    except UsageError as error:
        assert error.message and error.hint  # noqa: PT017, PT018


def test_rank_set() -> None:
    """The ends of ranges are included, and the text is the typed one."""
    ranks = RankSet(((8, 15), (0, 0)))

    assert [rank for rank in range(20) if rank in ranks] == [0, *range(8, 16)]
    assert ranks.lowest == 0
    assert str(ranks) == "8-15,0"


def test_stream_choice_by_local_rank() -> None:
    """A worker that is not listed has the default."""
    choice = StreamChoice(Std.NONE, {1: Std.ALL})

    assert [choice.of(rank) for rank in (0, 1)] == [Std.NONE, Std.ALL]
    assert str(choice) == f"1:{Std.ALL.value}"
    assert str(StreamChoice(Std.OUT, {})) == str(Std.OUT.value)


def test_stream_choice_without_streams_is_false() -> None:
    assert not StreamChoice(Std.NONE, {0: Std.NONE})
    assert StreamChoice(Std.NONE, {0: Std.ERR})
