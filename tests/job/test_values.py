"""What options accept, and the exact words where they do not."""

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

GOOD: Mapping[str, Mapping[str, object]] = {
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
    "log_line_prefix_template": {"[${rank}]: ": "[${rank}]: ", "": None},
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

UNTYPABLE = [
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
    [(name, text, value) for name, values in GOOD.items() for text, value in values.items()],
)
def test_reads(name: str, text: str, value: object) -> None:
    """Each spelling says this value."""
    assert ROWS[name].value.read(text) == value


@pytest.mark.parametrize(("name", "text", "complaint"), UNTYPABLE)
def test_complains(name: str, text: str, complaint: str) -> None:
    """All other mistakes are typed: see tests/contract/command_line/mistakes."""
    with pytest.raises(UsageError) as caught:
        ROWS[name].value.read(text)

    assert caught.value.message == f"{text!r} {complaint}"
    assert caught.value.hint


@given(text=st.text(), name=st.sampled_from(sorted(ROWS)))
def test_no_text_is_too_strange(text: str, name: str) -> None:
    """Whatever is typed is a value or a mistake with a hint, never a crash."""
    try:
        ROWS[name].value.read(text)
    except UsageError as error:
        told = bool(error.message and error.hint)
    else:
        told = True

    assert told


def test_a_set_of_ranges() -> None:
    """It contains the ends of its ranges, and prints as it is typed."""
    ranks = RankSet(((8, 15), (0, 0)))

    assert [rank for rank in range(20) if rank in ranks] == [0, *range(8, 16)]
    assert ranks.lowest == 0
    assert str(ranks) == "8-15,0"


def test_of_all_workers_or_of_some() -> None:
    """A worker that is not listed has the default."""
    choice = StreamChoice(Std.NONE, {1: Std.ALL})

    assert [choice.of(rank) for rank in (0, 1)] == [Std.NONE, Std.ALL]
    assert str(choice) == f"1:{Std.ALL.value}"
    assert str(StreamChoice(Std.OUT, {})) == str(Std.OUT.value)


def test_no_stream_is_false() -> None:
    """Neither of all workers nor of one."""
    assert not StreamChoice(Std.NONE, {0: Std.NONE})
    assert StreamChoice(Std.NONE, {0: Std.ERR})
