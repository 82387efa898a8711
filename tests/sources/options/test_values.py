"""What each kind of value accepts, and the exact words where it does not."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.door import (
    CpuSet,
    NumaBinding,
    RankSet,
    Std,
    StreamChoice,
    UsageError,
    WorkerCount,
    choices,
    hosts,
    names,
    numbers,
    output,
    paths,
    signals,
)

Parse = Callable[[str], object]

GOOD: Mapping[Parse, Mapping[str, object]] = {
    numbers.node_count: {"1": 1, "1:1": 1, "16": 16, "16:16": 16, "2:16": 16},
    numbers.fewest_nodes: {"2:16": 2, "16": 16},
    numbers.node_rank: {"0": 0, "15": 15},
    numbers.worker_count: {
        "xpu": WorkerCount.GPU,
        "8": 8,
        "010": 10,
        "auto": WorkerCount.AUTO,
        "gpu": WorkerCount.GPU,
        "cpu": WorkerCount.CPU,
    },
    numbers.restart_count: {"0": 0, " 3\n": 3},
    numbers.port: {"29500": 29500, "65535": 65535, "0": None},
    numbers.seconds: {"25": 25.0, "0": 0.0, "0.5": 0.5},
    numbers.waiting_time: {"0.5": 0.5, "15": 15.0},
    numbers.exit_codes: {"3": (3,), "5-7, 3,6": (3, 5, 6, 7), "1-255": tuple(range(1, 256))},
    numbers.failure_code: {"1": 1, "255": 255},
    signals.suspend_signal: {"USR1": 10, "sigusr2": 12, "10": 10, "35": 35},
    output.streams: {
        "0": StreamChoice(Std.NONE, {}),
        "3": StreamChoice(Std.ALL, {}),
        "0:3,1:0,12:2": StreamChoice(Std.NONE, {0: Std.ALL, 1: Std.NONE, 12: Std.ERR}),
    },
    numbers.ranks: {"0,2": RankSet(((0, 0), (2, 2))), "8-15, 0": RankSet(((8, 15), (0, 0)))},
    output.line_prefix: {"[${rank}]: ": "[${rank}]: ", "": None},
    output.line_filters: {"loss": ("loss",), "a,b c": ("a", "b c"), "1,,000,2": ("1,000", "2")},
    choices.switch: {"1": True, "Yes": True, "true": True, "0": False, "no": False, "FALSE": False},
    choices.numa_binding: {"near": NumaBinding.NEAR, "none": NumaBinding.NONE},
    hosts.address: {
        "node-7.cluster": "node-7.cluster",
        "10.0.0.1": "10.0.0.1",
        "fe80::1": "fe80::1",
        "[fe80::1]": "fe80::1",
    },
    hosts.endpoint: {
        "node-7": "node-7",
        "node-7:29500": "node-7:29500",
        "[::1]:29500": "[::1]:29500",
        "::1": "::1",
    },
    names.run_id: {"digits 7": "digits 7", "r" * 200: "r" * 200},
    paths.path: {"runs/a b": "runs/a b"},
    paths.captured_machine: {".": Path(), __file__: Path(__file__)},
    paths.new_archive: {"m.tar.xz": Path("m.tar.xz"), "a/m.tgz": Path("a/m.tgz")},
    numbers.cpu_list: {"0-1, 4": CpuSet((0, 1, 4))},
    names.setting: {"A=1": {"A": "1"}, "A=": {"A": ""}, "A=x=y z": {"A": "x=y z"}},
    names.variable_name: {"_nccl_2": "_nccl_2", "OMP_NUM_THREADS": "OMP_NUM_THREADS"},
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
CAPTURED = "give a captured machine, its folder or its archive"
SUFFIX = "give a name that ends in .tar.xz or .tar.gz"
CPUS = "give numbers and ranges of them, such as 0-15,64-79"

STREAMS = (
    "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or such a"
    " number for each local rank: 0:3,1:2"
)
RANKS = "give numbers from 0 and ranges of them, such as 0,8-15"
WRONG: Sequence[tuple[Parse, Sequence[str], str, str]] = [
    (numbers.node_count, ["0", "one", "-2", "4:2", "1:2:3", ""], "is not a number of nodes", NODES),
    (output.streams, ["4", "", "out"], "is not a choice of streams", STREAMS),
    (output.streams, ["0:1,0:2"], "names local rank 0 twice", "leave out one of them"),
    (numbers.ranks, ["", "7-3"], "is not a rank", RANKS),
    (output.line_prefix, ["a\nb"], "is more than one line", "leave line breaks out"),
    (
        output.line_filters,
        ["", "a,", "a\n"],
        "has an empty text or a line break in it",
        "give texts such as error,warning; write ,, for a comma in a text",
    ),
    (numbers.node_rank, ["-1", "node0", ""], "is not the rank of a node", "give a number from 0"),
    (
        numbers.worker_count,
        ["0", "-1", "1.5", "1_0", "٣", "9" * 5000],
        "is not a number of workers",
        FROM_1,
    ),
    (numbers.worker_count, ["gpus"], "is not a number of workers", "did you mean gpu?"),
    (numbers.restart_count, ["-1"], "is not a number of restarts", "give a number from 0"),
    (numbers.port, ["65536", "http"], "is not a port", PORTS),
    (numbers.seconds, ["25s", "1:30:00", "-1", "nan", "inf"], "is not a time in seconds", SECONDS),
    (
        numbers.waiting_time,
        ["0.4"],
        "is too short to tell a lost node from a busy one",
        "give at least 0.5",
    ),
    (numbers.waiting_time, ["soon"], "is not a time in seconds", SECONDS),
    (
        numbers.failure_code,
        ["0", "256", "SIGTERM", ""],
        "is not the exit code of a failure",
        "give a number from 1 to 255",
    ),
    (
        signals.suspend_signal,
        ["TERM", "SIGINT", "QUIT", "9", "0", "USR", ""],
        "is not a signal that can ask for a suspension",
        "give USR1 or USR2",
    ),
    (
        numbers.exit_codes,
        ["0", "7-5", "2-256", "SIGTERM"],
        "is not the exit code of a failure",
        CODES,
    ),
    (choices.switch, ["maybe"], "is neither yes nor no", "give 1 or 0, true or false"),
    (choices.numa_binding, ["nod"], "is not a NUMA binding", "did you mean node?"),
    (
        choices.numa_binding,
        ["package"],
        "is not a NUMA binding",
        "give one of auto, node, near, socket, exclusive, core-complex, none",
    ),
    (
        hosts.address,
        ["node0:29500"],
        "has a port in it",
        "give node0 here, and --master-port 29500",
    ),
    (hosts.address, ["[::1]:29500"], "has a port in it", "give ::1 here, and --master-port 29500"),
    (
        hosts.endpoint,
        ["node0:port", "node0:", "node0:70000", ":29500", "[::1", "[::1]29500", "tcp://node0:1"],
        "is not an endpoint",
        ENDPOINT,
    ),
    (hosts.address, ["", "a b"], "is not a host", "give a host name or an IP address"),
    (
        names.run_id,
        ["", "..", "a/b", "a\nb"],
        "cannot be a run id, which also names a folder",
        WORD,
    ),
    (paths.path, ["~/runs"], "has a ~, which only a shell expands", "write the path in full"),
    (paths.new_archive, ["m.zip"], "is not the name of an archive", SUFFIX),
    (numbers.cpu_list, ["", "3-1", "all", "0-99999999999"], "is not a list of CPUs", CPUS),
    (names.setting, ["NCCL_DEBUG"], "has no = in it", "write NAME=VALUE, such as NCCL_DEBUG=INFO"),
]
"""Texts, and what follows each in the message."""

OTHERS: Sequence[tuple[Parse, str, str, str]] = [
    (output.streams, "0:1,2", "'2' is not a choice of streams", STREAMS),
    (output.streams, "0:1,1:7", "'1:7' is not a choice of streams", STREAMS),
    (numbers.ranks, "0,-1", "'-1' is not a rank", RANKS),
    (numbers.exit_codes, "3,", "'' is not the exit code of a failure", CODES),
    (
        names.run_id,
        "r" * 201,
        f"'{'r' * 20}'... has 201 bytes, too many for the name of a folder",
        BYTES,
    ),
    (
        names.run_id,
        "é" * 101,
        f"'{'é' * 20}'... has 202 bytes, too many for the name of a folder",
        BYTES,
    ),
    (paths.path, "", "the path is empty", "give the path of a file or folder"),
    (paths.captured_machine, "nowhere", "nowhere does not exist", CAPTURED),
    (paths.captured_machine, "/dev/null", "/dev/null is neither a folder nor a file", CAPTURED),
    (paths.captured_machine, "", "the path is empty", "give the path of a file or folder"),
    (
        names.setting,
        "A-B=1",
        "'A-B' is not the name of a variable",
        "give letters, digits and _, such as NCCL_DEBUG",
    ),
    (
        names.setting,
        "=1",
        "'' is not the name of a variable",
        "give letters, digits and _, such as NCCL_DEBUG",
    ),
    (
        names.variable_name,
        "RANK",
        "RANK is a variable that clusterrun sets for each worker",
        "leave it out",
    ),
    (
        names.variable_name,
        "MASTER_PORT",
        "MASTER_PORT is a variable that clusterrun sets for each worker",
        "use --master-port",
    ),
]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [(parse, text, value) for parse, values in GOOD.items() for text, value in values.items()],
)
def test_reads(parse: Parse, text: str, value: object) -> None:
    """Each spelling says this value."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "complaint", "hint"),
    [
        *(
            (parse, text, f"{text!r} {end}", hint)
            for parse, texts, end, hint in WRONG
            for text in texts
        ),
        *OTHERS,
    ],
)
def test_complains(parse: Parse, text: str, complaint: str, hint: str) -> None:
    """Each mistake has its sentence and what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse(text)

    assert (caught.value.message, caught.value.hint) == (complaint, hint)


@given(text=st.text(), parse=st.sampled_from(sorted(GOOD, key=repr)))
def test_no_text_is_too_strange(text: str, parse: Parse) -> None:
    """Whatever is typed is a value or a mistake with a hint, never a crash."""
    try:
        parse(text)
    except UsageError as error:
        told = bool(error.message and error.hint)
    else:
        told = True

    assert told
