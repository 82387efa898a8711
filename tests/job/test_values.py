"""What options accept, and the exact words where they do not."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.job.door import (
    OPTIONS,
    OPTIONS_OF_COMMANDS,
    NodeRange,
    NumaBinding,
    RankSet,
    Std,
    StreamChoice,
    UsageError,
    WorkerCount,
)

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
        "[::1]:29500": "[::1]:29500",
        "::1": "::1",
    },
    "run_id": {"digits 7": "digits 7", "r" * 200: "r" * 200},
    "log_dir": {"runs/a b": "runs/a b"},
    "machine_root": {".": Path(), __file__: Path(__file__)},
    "topo.capture": {"m.json": Path("m.json"), "a/m.json": Path("a/m.json")},
    "env": {
        "A=1": ("A", "1"),
        "_a_2=": ("_a_2", ""),
        "A=x=y z": ("A", "x=y z"),
    },
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

FROM_1 = "give a number from 1, or auto, gpu or cpu"
NODES = "give a number from 1, or MIN:MAX"
ENDPOINT = "give HOST, HOST:PORT or [IPV6]:PORT"
PORTS = "give a number from 1 to 65535, or 0 to have one chosen"
SECONDS = "give a number of seconds, such as 25 or 0.5"
CODES = "give numbers from 1 to 255 and ranges of them, such as 3,5-7"
WORD = "give a word without a /"
BYTES = "give a name of at most 200 bytes"
CAPTURED = "give a captured machine, a file or a folder"
SUFFIX = "give a name that ends in .json"

STREAMS = (
    "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or such a"
    " number for each local rank: 0:3,1:2"
)
RANKS = "give numbers from 0 and ranges of them, such as 0,8-15"
WRONG: Sequence[tuple[str, Sequence[str], str, str]] = [
    ("nnodes", ["0", "one", "-2", "4:2", "1:2:3", ""], "is not a number of nodes", NODES),
    ("tee", ["4", "", "out"], "is not a choice of streams", STREAMS),
    ("tee", ["0:1,0:2"], "names local rank 0 twice", "leave out one of them"),
    ("ranks", ["", "7-3"], "is not a rank", RANKS),
    ("log_line_prefix_template", ["a\nb"], "is more than one line", "leave line breaks out"),
    (
        "duplicate_stdout_filters",
        ["", "a,", "a\n"],
        "has an empty text or a line break in it",
        "give texts such as error,warning; write ,, for a comma in a text",
    ),
    ("node_rank", ["-1", "node0", ""], "is not the rank of a node", "give a number from 0"),
    (
        "nproc_per_node",
        ["0", "-1", "1.5", "1_0", "٣", "9" * 5000],
        "is not a number of workers",
        FROM_1,
    ),
    ("nproc_per_node", ["gpus"], "is not a number of workers", "did you mean gpu?"),
    ("max_restarts", ["-1"], "is not a number of restarts", "give a number from 0"),
    ("master_port", ["65536", "http"], "is not a port", PORTS),
    ("rdzv_timeout", ["1:30:00", "-1", "nan", "inf"], "is not a time in seconds", SECONDS),
    ("rdzv_timeout", ["25s"], "is not a time in seconds", "give seconds: 25"),
    ("hosts", ["\udcff", "a\nb"], "is not a list of hosts", "write it as in gpu[01-04,7],login"),
    ("rdzv_timeout", ["10m", "10 min"], "is not a time in seconds", "give seconds: 600"),
    (
        "heartbeat_timeout",
        ["0.4"],
        "is too short to tell a lost node from a busy one",
        "give at least 0.5",
    ),
    ("heartbeat_timeout", ["soon"], "is not a time in seconds", SECONDS),
    (
        "suspend_exit_code",
        ["0", "256", "SIGTERM", ""],
        "is not the exit code of a failure",
        "give a number from 1 to 255",
    ),
    (
        "suspend_signal",
        ["TERM", "SIGINT", "QUIT", "9", "0", "USR", ""],
        "is not a signal that can ask for a suspension",
        "give USR1 or USR2",
    ),
    (
        "no_restart_exit_codes",
        ["0", "7-5", "2-256", "SIGTERM"],
        "is not the exit code of a failure",
        CODES,
    ),
    ("pdb", ["maybe"], "is neither yes nor no", "give 1 or 0, true or false"),
    ("numa_binding", ["nod"], "is not a NUMA binding", "did you mean node?"),
    (
        "numa_binding",
        ["package"],
        "is not a NUMA binding",
        "give one of auto, node, near, socket, exclusive, core-complex, none",
    ),
    (
        "master_addr",
        ["node0:29500"],
        "has a port in it",
        "give node0 here, and --master-port 29500",
    ),
    ("master_addr", ["[::1]:29500"], "has a port in it", "give ::1 here, and --master-port 29500"),
    (
        "rdzv_endpoint",
        ["node0:port", "node0:", "node0:70000", ":29500", "[::1", "[::1]29500", "tcp://node0:1"],
        "is not an endpoint",
        ENDPOINT,
    ),
    ("master_addr", ["", "a b"], "is not a host", "give a host name or an IP address"),
    (
        "run_id",
        ["", "..", "a/b", "a\nb"],
        "cannot be a run id, which also names a folder",
        WORD,
    ),
    ("log_dir", ["~/runs"], "has a ~, which only a shell expands", "write the path in full"),
    ("topo.capture", ["m.tar.xz"], "is not the name of a JSON file", SUFFIX),
    ("env", ["NCCL_DEBUG"], "has no = in it", "write NAME=VALUE, such as NCCL_DEBUG=INFO"),
]
"""Texts, and what follows each in the message."""

OTHERS: Sequence[tuple[str, str, str, str]] = [
    ("tee", "0:1,2", "'2' is not a choice of streams", STREAMS),
    ("tee", "0:1,1:7", "'1:7' is not a choice of streams", STREAMS),
    ("ranks", "0,-1", "'-1' is not a rank", RANKS),
    ("no_restart_exit_codes", "3,", "'' is not the exit code of a failure", CODES),
    (
        "run_id",
        "r" * 201,
        f"'{'r' * 20}'... has 201 bytes, too many for the name of a folder",
        BYTES,
    ),
    (
        "run_id",
        "é" * 101,
        f"'{'é' * 20}'... has 202 bytes, too many for the name of a folder",
        BYTES,
    ),
    ("log_dir", "", "the path is empty", "give the path of a file or folder"),
    ("machine_root", "nowhere", "nowhere does not exist", CAPTURED),
    ("machine_root", "/dev/null", "/dev/null is neither a folder nor a file", CAPTURED),
    ("machine_root", "", "the path is empty", "give the path of a file or folder"),
    (
        "env",
        "A-B=1",
        "'A-B' is not the name of a variable",
        "give letters, digits and _, such as NCCL_DEBUG",
    ),
    (
        "env",
        "=1",
        "'' is not the name of a variable",
        "give letters, digits and _, such as NCCL_DEBUG",
    ),
    (
        "env",
        "RANK=1",
        "RANK is a variable that clusterrun sets for each worker",
        "leave it out",
    ),
    (
        "env",
        "MASTER_PORT=1",
        "MASTER_PORT is a variable that clusterrun sets for each worker",
        "use --master-port",
    ),
    (
        "rdzv_backend",
        "etcd-v2",
        "etcd-v2 needs a server of its own, and clusterrun has no such backend",
        "meet at a node of the job:\n  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
    ),
    ("rdzv_backend", "c10", "'c10' is not a rendezvous backend", "did you mean c10d?"),
    ("rdzv_backend", "zeus", "'zeus' is not a rendezvous backend", "give static or c10d"),
    (
        "rdzv_conf",
        "timeout",
        "'timeout' is not KEY=VALUE",
        "write KEY=VALUE,KEY=VALUE, such as join_timeout=900",
    ),
    (
        "rdzv_conf",
        "a=1,b=",
        "'b=' is not KEY=VALUE",
        "write KEY=VALUE,KEY=VALUE, such as join_timeout=900",
    ),
    (
        "signals_to_handle",
        "SIGTERM,SIGUSR",
        "'SIGUSR' is not the name of a signal",
        "did you mean SIGUSR1?",
    ),
    ("signals_to_handle", "SIGKILL", "no program can handle SIGKILL", "leave it out"),
    ("role", "", "'' cannot name a role", "give a word, such as trainer"),
    ("role", "r" * 256, f"'{'r' * 255}' cannot name a role", "give a word, such as trainer"),
    (
        "pass_local_rank",
        "rank",
        "'rank' is not an argument for the local rank",
        "give local-rank, which torch 2 passes, or local_rank, which torch 1 passed",
    ),
]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [(name, text, value) for name, values in GOOD.items() for text, value in values.items()],
)
def test_reads(name: str, text: str, value: object) -> None:
    """Each spelling says this value."""
    assert ROWS[name].value.read(text) == value


@pytest.mark.parametrize(
    ("name", "text", "complaint", "hint"),
    [
        *(
            (name, text, f"{text!r} {end}", hint)
            for name, texts, end, hint in WRONG
            for text in texts
        ),
        *OTHERS,
    ],
)
def test_complains(name: str, text: str, complaint: str, hint: str) -> None:
    """Each mistake has its sentence and what to write instead."""
    with pytest.raises(UsageError) as caught:
        ROWS[name].value.read(text)

    assert (caught.value.message, caught.value.hint) == (complaint, hint)


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
