"""What each kind of value accepts, and the exact words where it does not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import NumaBinding, WorkerCount
from clusterrun.domain.ranks import RankSet
from clusterrun.domain.streams import Std, StreamChoice
from clusterrun.errors import UsageError
from clusterrun.sources.options.values import choices, hosts, names, numbers, output, paths
from hypothesis import given
from hypothesis import strategies as st

GOOD: list[tuple[Callable[[str], object], str, object]] = [
    (numbers.node_count, "1", 1),
    (numbers.node_count, "1:1", 1),
    (numbers.node_count, "16", 16),
    (numbers.node_count, "16:16", 16),
    (numbers.node_count, "2:16", 16),
    (numbers.fewest_nodes, "2:16", 2),
    (numbers.fewest_nodes, "16", 16),
    (numbers.node_rank, "0", 0),
    (numbers.node_rank, "15", 15),
    (numbers.worker_count, "xpu", WorkerCount.GPU),
    (numbers.worker_count, "8", 8),
    (numbers.worker_count, "010", 10),
    (numbers.worker_count, "auto", WorkerCount.AUTO),
    (numbers.worker_count, "gpu", WorkerCount.GPU),
    (numbers.worker_count, "cpu", WorkerCount.CPU),
    (numbers.restart_count, "0", 0),
    (numbers.restart_count, " 3\n", 3),
    (numbers.port, "29500", 29500),
    (numbers.port, "65535", 65535),
    (numbers.port, "0", None),
    (numbers.seconds, "25", 25.0),
    (numbers.seconds, "0", 0.0),
    (numbers.seconds, "0.5", 0.5),
    (numbers.waiting_time, "0.5", 0.5),
    (numbers.waiting_time, "15", 15.0),
    (numbers.exit_codes, "3", (3,)),
    (numbers.exit_codes, "5-7, 3,6", (3, 5, 6, 7)),
    (numbers.exit_codes, "1-255", tuple(range(1, 256))),
    (output.streams, "0", StreamChoice(Std.NONE, {})),
    (output.streams, "3", StreamChoice(Std.ALL, {})),
    (
        output.streams,
        "0:3,1:0,12:2",
        StreamChoice(Std.NONE, {0: Std.ALL, 1: Std.NONE, 12: Std.ERR}),
    ),
    (numbers.ranks, "0,2", RankSet(((0, 0), (2, 2)))),
    (numbers.ranks, "8-15, 0", RankSet(((8, 15), (0, 0)))),
    (output.line_prefix, "[${rank}]: ", "[${rank}]: "),
    (output.line_prefix, "", None),
    (output.line_filters, "loss", ("loss",)),
    (output.line_filters, "a,b c", ("a", "b c")),
    (output.line_filters, "1,,000,2", ("1,000", "2")),
    (choices.switch, "1", True),
    (choices.switch, "Yes", True),
    (choices.switch, "true", True),
    (choices.switch, "0", False),
    (choices.switch, "no", False),
    (choices.switch, "FALSE", False),
    (choices.numa_binding, "near", NumaBinding.NEAR),
    (choices.numa_binding, "none", NumaBinding.NONE),
    (hosts.address, "node-7.cluster", "node-7.cluster"),
    (hosts.address, "10.0.0.1", "10.0.0.1"),
    (hosts.address, "fe80::1", "fe80::1"),
    (hosts.address, "[fe80::1]", "fe80::1"),
    (hosts.endpoint, "node-7", "node-7"),
    (hosts.endpoint, "node-7:29500", "node-7:29500"),
    (hosts.endpoint, "[::1]:29500", "[::1]:29500"),
    (hosts.endpoint, "::1", "::1"),
    (names.run_id, "digits 7", "digits 7"),
    (names.run_id, "r" * 200, "r" * 200),
    (paths.path, "runs/a b", "runs/a b"),
    (paths.captured_machine, ".", Path()),
    (paths.captured_machine, __file__, Path(__file__)),
    (paths.new_archive, "m.tar.xz", Path("m.tar.xz")),
    (paths.new_archive, "a/m.tgz", Path("a/m.tgz")),
    (numbers.cpu_list, "0-1, 4", CpuSet((0, 1, 4))),
    (names.setting, "A=1", {"A": "1"}),
    (names.setting, "A=", {"A": ""}),
    (names.setting, "A=x=y z", {"A": "x=y z"}),
    (names.variable_name, "_nccl_2", "_nccl_2"),
    (names.variable_name, "OMP_NUM_THREADS", "OMP_NUM_THREADS"),
]

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
FILTERS = (
    "has an empty text or a line break in it",
    "give texts such as error,warning; write ,, for a comma in a text",
)

BAD: list[tuple[Callable[[str], object], str, str, str]] = [
    (numbers.node_count, "0", "'0' is not a number of nodes", NODES),
    (output.streams, "4", "'4' is not a choice of streams", STREAMS),
    (output.streams, "", "'' is not a choice of streams", STREAMS),
    (output.streams, "out", "'out' is not a choice of streams", STREAMS),
    (output.streams, "0:1,2", "'2' is not a choice of streams", STREAMS),
    (output.streams, "0:1,1:7", "'1:7' is not a choice of streams", STREAMS),
    (output.streams, "0:1,0:2", "'0:1,0:2' names local rank 0 twice", "leave out one of them"),
    (numbers.ranks, "", "'' is not a rank", RANKS),
    (numbers.ranks, "0,-1", "'-1' is not a rank", RANKS),
    (numbers.ranks, "7-3", "'7-3' is not a rank", RANKS),
    (output.line_prefix, "a\nb", "'a\\nb' is more than one line", "leave line breaks out"),
    (output.line_filters, "", f"'' {FILTERS[0]}", FILTERS[1]),
    (output.line_filters, "a,", f"'a,' {FILTERS[0]}", FILTERS[1]),
    (output.line_filters, "a\n", f"'a\\n' {FILTERS[0]}", FILTERS[1]),
    (numbers.node_count, "one", "'one' is not a number of nodes", NODES),
    (numbers.node_count, "-2", "'-2' is not a number of nodes", NODES),
    (numbers.node_count, "4:2", "'4:2' is not a number of nodes", NODES),
    (numbers.node_count, "1:2:3", "'1:2:3' is not a number of nodes", NODES),
    (numbers.node_count, "", "'' is not a number of nodes", NODES),
    (numbers.node_rank, "-1", "'-1' is not the rank of a node", "give a number from 0"),
    (numbers.node_rank, "node0", "'node0' is not the rank of a node", "give a number from 0"),
    (numbers.node_rank, "", "'' is not the rank of a node", "give a number from 0"),
    (numbers.worker_count, "0", "'0' is not a number of workers", FROM_1),
    (numbers.worker_count, "-1", "'-1' is not a number of workers", FROM_1),
    (numbers.worker_count, "1.5", "'1.5' is not a number of workers", FROM_1),
    (numbers.worker_count, "1_0", "'1_0' is not a number of workers", FROM_1),
    (numbers.worker_count, "٣", "'٣' is not a number of workers", FROM_1),
    (numbers.worker_count, "9" * 5000, f"'{'9' * 5000}' is not a number of workers", FROM_1),
    (numbers.worker_count, "gpus", "'gpus' is not a number of workers", "did you mean gpu?"),
    (numbers.restart_count, "-1", "'-1' is not a number of restarts", "give a number from 0"),
    (numbers.port, "65536", "'65536' is not a port", PORTS),
    (numbers.port, "http", "'http' is not a port", PORTS),
    (numbers.seconds, "25s", "'25s' is not a time in seconds", SECONDS),
    (numbers.seconds, "1:30:00", "'1:30:00' is not a time in seconds", SECONDS),
    (numbers.seconds, "-1", "'-1' is not a time in seconds", SECONDS),
    (numbers.seconds, "nan", "'nan' is not a time in seconds", SECONDS),
    (numbers.seconds, "inf", "'inf' is not a time in seconds", SECONDS),
    (
        numbers.waiting_time,
        "0.4",
        "'0.4' is too short to tell a lost node from a busy one",
        "give at least 0.5",
    ),
    (numbers.waiting_time, "soon", "'soon' is not a time in seconds", SECONDS),
    (numbers.exit_codes, "0", "'0' is not the exit code of a failure", CODES),
    (numbers.exit_codes, "3,", "'' is not the exit code of a failure", CODES),
    (numbers.exit_codes, "7-5", "'7-5' is not the exit code of a failure", CODES),
    (numbers.exit_codes, "2-256", "'2-256' is not the exit code of a failure", CODES),
    (numbers.exit_codes, "SIGTERM", "'SIGTERM' is not the exit code of a failure", CODES),
    (choices.switch, "maybe", "'maybe' is neither yes nor no", "give 1 or 0, true or false"),
    (choices.numa_binding, "nod", "'nod' is not a NUMA binding", "did you mean node?"),
    (
        choices.numa_binding,
        "package",
        "'package' is not a NUMA binding",
        "give one of auto, node, near, socket, exclusive, core-complex, none",
    ),
    (
        hosts.address,
        "node0:29500",
        "'node0:29500' has a port in it",
        "give node0 here, and --master-port 29500",
    ),
    (
        hosts.address,
        "[::1]:29500",
        "'[::1]:29500' has a port in it",
        "give ::1 here, and --master-port 29500",
    ),
    (hosts.endpoint, "node0:port", "'node0:port' is not an endpoint", ENDPOINT),
    (hosts.endpoint, "node0:", "'node0:' is not an endpoint", ENDPOINT),
    (hosts.endpoint, "node0:70000", "'node0:70000' is not an endpoint", ENDPOINT),
    (hosts.endpoint, ":29500", "':29500' is not an endpoint", ENDPOINT),
    (hosts.endpoint, "[::1", "'[::1' is not an endpoint", ENDPOINT),
    (hosts.endpoint, "[::1]29500", "'[::1]29500' is not an endpoint", ENDPOINT),
    (hosts.endpoint, "tcp://node0:1", "'tcp://node0:1' is not an endpoint", ENDPOINT),
    (hosts.address, "", "'' is not a host", "give a host name or an IP address"),
    (hosts.address, "a b", "'a b' is not a host", "give a host name or an IP address"),
    (names.run_id, "", "'' cannot be a run id, which also names a folder", WORD),
    (names.run_id, "..", "'..' cannot be a run id, which also names a folder", WORD),
    (names.run_id, "a/b", "'a/b' cannot be a run id, which also names a folder", WORD),
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
    (names.run_id, "a\nb", "'a\\nb' cannot be a run id, which also names a folder", WORD),
    (paths.path, "", "the path is empty", "give the path of a file or folder"),
    (
        paths.path,
        "~/runs",
        "'~/runs' has a ~, which only a shell expands",
        "write the path in full",
    ),
    (paths.captured_machine, "nowhere", "nowhere does not exist", CAPTURED),
    (paths.captured_machine, "/dev/null", "/dev/null is neither a folder nor a file", CAPTURED),
    (paths.captured_machine, "", "the path is empty", "give the path of a file or folder"),
    (paths.new_archive, "m.zip", "'m.zip' is not the name of an archive", SUFFIX),
    (numbers.cpu_list, "", "'' is not a list of CPUs", CPUS),
    (numbers.cpu_list, "3-1", "'3-1' is not a list of CPUs", CPUS),
    (numbers.cpu_list, "all", "'all' is not a list of CPUs", CPUS),
    (numbers.cpu_list, "0-99999999999", "'0-99999999999' is not a list of CPUs", CPUS),
    (
        names.setting,
        "NCCL_DEBUG",
        "'NCCL_DEBUG' has no = in it",
        "write NAME=VALUE, such as NCCL_DEBUG=INFO",
    ),
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


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_reads(parse: Callable[[str], object], text: str, value: object) -> None:
    """Each spelling says this value."""
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text", "complaint", "hint"), BAD)
def test_complains(parse: Callable[[str], object], text: str, complaint: str, hint: str) -> None:
    """Each mistake has its sentence and what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse(text)

    assert (caught.value.message, caught.value.hint) == (complaint, hint)


@given(text=st.text(), parse=st.sampled_from(sorted({row[0] for row in GOOD}, key=repr)))
def test_no_text_is_too_strange(text: str, parse: Callable[[str], object]) -> None:
    """Whatever is typed is a value or a mistake with a hint, never a crash."""
    try:
        parse(text)
    except UsageError as error:
        told = bool(error.message and error.hint)
    else:
        told = True

    assert told
