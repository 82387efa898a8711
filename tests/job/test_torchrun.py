"""Command lines of torchrun: each option has its effect, an error or a warning."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from tests.captured import captured
from tests.command_lines import Flags
from tests.described import PROCESS, describe
from tests.job.door import Fact, NumaBinding, StartMethod, WorkerCount

pytestmark = pytest.mark.usefixtures("script")

TORCHRUN = replace(PROCESS, called="torchrun")
TWO: Flags = MappingProxyType({"nnodes": "2", "rdzv_endpoint": "n0:29400"})


def test_static_means_the_masters_place() -> None:
    """Its endpoint is MASTER_ADDR and MASTER_PORT, and beats flags for these, as there."""
    flags = {**TWO, "rdzv_backend": "static", "node_rank": "1", "master_addr": "elsewhere"}

    job = describe("train.py", flags=flags).job

    assert job.fact("master_addr") == Fact("n0", "--rdzv-endpoint")
    assert job.fact("master_port") == Fact(29400, "--rdzv-endpoint")
    assert job.fact("rdzv_endpoint") == Fact(None, "default")
    assert job.fact("node_rank") == Fact(1, "--node-rank")


def test_static_without_a_port() -> None:
    """A port that is not in the endpoint is set elsewhere, or is 29500."""
    flags = {**TWO, "rdzv_backend": "static", "rdzv_endpoint": "[::1]"}

    job = describe("train.py", flags=flags).job

    assert (job.meeting.master_addr, job.meeting.master_port) == ("::1", 29500)


def test_c10d_meets_at_the_endpoint_for_good() -> None:
    """Nodes are ranked as they join; a rank that was set is ignored with a warning."""
    resolved = describe("train.py", flags={**TWO, "rdzv_backend": "c10d", "node_rank": "1"})

    assert resolved.job.fact("rdzv_endpoint") == Fact("n0:29400", "--rdzv-endpoint")
    assert resolved.job.fact("node_rank") == Fact(None, "default")
    assert resolved.warnings == (
        (
            "--node-rank 1 is ignored with --rdzv-backend c10d, as under torchrun:"
            " node 0 is the one at the endpoint, the others are ranked as they join"
        ),
    )


def test_c10d_without_an_endpoint_falls_back() -> None:
    """The master's address is as good a place."""
    flags = {"nnodes": "2", "rdzv_backend": "c10d", "master_addr": "n0"}

    job = describe("train.py", flags=flags).job

    assert (job.meeting.master_addr, job.meeting.master_port) == ("n0", 29500)


def test_c10d_and_its_port_as_master_port() -> None:
    """Many scripts use one port for both; the agents get it."""
    resolved = describe("train.py", flags={**TWO, "rdzv_backend": "c10d", "master_port": "29400"})

    assert resolved.job.fact("master_port") == Fact(None, "default")
    assert resolved.warnings == (
        (
            "--master-port 29400 is ignored: it is the endpoint's port, which the agents keep in"
            " use; a free port is chosen for the workers"
        ),
    )


def test_standalone_is_one_node() -> None:
    """Cluster, endpoint and rank are ignored."""
    flags: Flags = {"standalone": True, "rdzv_endpoint": "n0:1", "node_rank": "3"}

    job = describe("train.py", flags=flags, environ=captured("node.1")).job

    assert job.fact("nnodes") == Fact(1, "--standalone")
    assert job.fact("cluster") == Fact("none", "--standalone")
    assert (job.agents, job.workers.node_rank, job.meeting.rdzv_endpoint) == (1, None, None)


@pytest.mark.parametrize(
    ("flags", "timeout"),
    [
        ({"rdzv_conf": "join_timeout=900"}, Fact(900.0, "--rdzv-conf join_timeout")),
        ({"rdzv_conf": "timeout=7,join_timeout=9"}, Fact(9.0, "--rdzv-conf join_timeout")),
        ({"rdzv_conf": "timeout=7"}, Fact(7.0, "--rdzv-conf timeout")),
        ({"rdzv_conf": "timeout=7", "rdzv_timeout": "8"}, Fact(8.0, "--rdzv-timeout")),
    ],
)
def test_rdzv_conf_has_the_timeout(flags: Flags, timeout: Fact[float]) -> None:
    """Of torchrun's settings it is the one that there is here, too; our own flag beats it."""
    assert describe("train.py", flags=flags).job.fact("rdzv_timeout") == timeout


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            {"rdzv_conf": "is_host=1"},
            "--rdzv-conf is_host=1 has no effect: use --node-rank 0 on the host",
        ),
        (
            {"rdzv_conf": "read_timeout=9"},
            "--rdzv-conf read_timeout=9 has no effect: clusterrun has no such setting",
        ),
        (
            {"monitor_interval": "5"},
            "--monitor-interval has no effect: clusterrun sees the end of a worker at once",
        ),
        (
            {"event_log_handler": "console"},
            "--event-log-handler console has no effect: --events FILE writes events",
        ),
    ],
)
def test_options_without_effect(flags: Flags, line: str) -> None:
    """One warning names the replacement."""
    assert describe("train.py", flags=flags).warnings == (line,)


@pytest.mark.parametrize(
    "flags",
    [{"event_log_handler": "null"}, {"use_env": True}, {"role": "x"}, {"logs_specs": "default"}],
)
def test_options_without_a_warning(flags: Flags) -> None:
    """Options that ask for what clusterrun does in any case."""
    assert describe("train.py", flags=flags).warnings == ()


@pytest.mark.parametrize(
    ("own", "flags", "rank"),
    [
        ("n0", {"master_addr": "n0"}, 0),
        ("n0", {"rdzv_endpoint": "n0:29400"}, 0),
        ("n1", {"master_addr": "n0"}, None),
        ("n0", {"master_addr": "n0", "node_rank": "1"}, 1),
    ],
)
def test_local_addr_tells_node_zero(own: str, flags: Flags, rank: int | None) -> None:
    """Where a node's own address is the one to meet at, it need not look for it."""
    job = describe("train.py", flags={"nnodes": "2", "local_addr": own, **flags}).job

    assert job.workers.node_rank == rank


def test_local_addr_on_one_node() -> None:
    """It is the master address, unless that is set."""
    alone = describe("train.py", flags={"local_addr": "127.0.0.2"}).job

    assert alone.fact("master_addr") == Fact("127.0.0.2", "--local-addr")


def test_torchs_own_variable_for_the_grace() -> None:
    """It beats the default alone."""
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}

    by_variable = describe("train.py", environ=environ).job.fact("shutdown_timeout")
    by_flag = describe("train.py", flags={"shutdown_timeout": "5"}, environ=environ).job

    assert by_variable == Fact(60.0, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    assert by_flag.fact("shutdown_timeout") == Fact(5.0, "--shutdown-timeout")


def test_as_torchrun_defaults_are_torchruns() -> None:
    """One worker, no binding, an interpreter for each, 30 s, each restart; an endpoint is the master's."""
    flags = {"nnodes": "2", "rdzv_endpoint": "n0:1"}

    job = describe("train.py", flags=flags, process=TORCHRUN).job

    assert job.fact("nproc_per_node") == Fact(1, "torchrun's default")
    assert job.fact("numa_binding") == Fact(NumaBinding.NONE, "torchrun's default")
    assert job.fact("gpus_per_worker") == Fact(0, "torchrun's default")
    assert job.fact("start_method") == Fact(StartMethod.SPAWN, "torchrun's default")
    assert job.fact("shutdown_timeout") == Fact(30.0, "torchrun's default")
    assert job.fact("no_fail_fast") == Fact(value=True, origin="torchrun's default")
    assert job.fact("as_torchrun") == Fact(value=True, origin="torchrun's default")
    assert not describe("train.py").job.as_torchrun
    assert (job.meeting.master_addr, job.meeting.master_port) == ("n0", 1)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({"nproc_per_node": "gpu", "numa_binding": "node", "start_method": "fork"}, {}),
        (
            {},
            {
                "PET_NPROC_PER_NODE": "gpu",
                "CLUSTERRUN_NUMA_BINDING": "node",
                "PET_START_METHOD": "fork",
            },
        ),
    ],
)
def test_as_torchrun_settings_replace_defaults(flags: Flags, environ: Mapping[str, str]) -> None:
    """Defaults are the weakest of all."""
    job = describe("train.py", flags=flags, environ=environ, process=TORCHRUN).job

    assert job.workers.nproc_per_node is WorkerCount.GPU
    assert (job.placing.numa_binding, job.starting.start_method) == (
        NumaBinding.NODE,
        StartMethod.FORK,
    )


def test_as_torchrun_a_cluster_still_sets_the_place() -> None:
    """N nodes that each train alone are the worst outcome."""
    job = describe("train.py", environ=captured("node.1"), process=TORCHRUN).job

    assert (job.agents, job.agent_rank) == (2, 1)


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (("train.py", "--", "--nnodes", "2"), ("--nnodes", "2")),
        (("train.py", "--", "--", "x"), ("--", "x")),
        (("train.py", "x", "--", "y"), ("x", "--", "y")),
    ],
)
def test_two_dashes_after_the_script(words: tuple[str, ...], args: tuple[str, ...]) -> None:
    """Are taken away as by argparse; what follows is the script's without a doubt."""
    resolved = describe(*words)

    assert resolved.job.program.args == args
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    ("flags", "environ", "template"),
    [
        ({}, {}, Fact("", "torchrun's default")),
        ({"tee": "3"}, {}, Fact("[${role_name}${local_rank}]:", "torchrun's default")),
        (
            {},
            {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "r${rank} "},
            Fact("r${rank} ", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        ),
    ],
)
def test_as_torchrun_lines_have_its_prefixes(
    flags: Flags, environ: Mapping[str, str], template: Fact[str]
) -> None:
    """None but for --tee: programs read what torchrun's workers print."""
    job = describe("train.py", flags=flags, environ=environ, process=TORCHRUN).job

    assert job.fact("log_line_prefix_template") == template


@pytest.mark.parametrize(
    ("flags", "environ", "most", "fewest"),
    [
        ({"nnodes": "2:4", "rdzv_endpoint": "n0"}, {}, 4, 2),
        ({"nnodes": "4", "rdzv_endpoint": "n0"}, {}, 4, 4),
        ({"nnodes": "1:4"}, captured("node.1"), 2, 1),
        ({"nnodes": "2:4"}, captured("node.1"), 2, 2),
        ({}, captured("node.1"), 2, 2),
        ({}, {}, 1, 1),
    ],
)
def test_of_a_range_a_cluster_has_a_number(
    flags: Flags, environ: Mapping[str, str], most: int, fewest: int
) -> None:
    """MIN:MAX agrees with a cluster of any size between, which is then the most."""
    job = describe("train.py", flags=flags, environ=environ).job

    assert (job.nnodes, job.fewest_nodes) == (most, fewest)
    assert (job.last_call is None) == (most == fewest)


def test_the_last_call_of_torchruns_setting() -> None:
    """Its key is our flag, and weaker than that."""
    by_conf = describe("train.py", flags={"rdzv_conf": "last_call_timeout=5"}).job
    by_flag = describe(
        "train.py", flags={"rdzv_conf": "last_call_timeout=5", "last_call_timeout": "6"}
    ).job

    assert by_conf.fact("last_call_timeout") == Fact(5.0, "--rdzv-conf last_call_timeout")
    assert by_flag.fact("last_call_timeout") == Fact(6.0, "--last-call-timeout")
