"""--exec: what can't be had without an agent."""

import pytest
from clusterrun.domain.facts import Fact
from clusterrun.sources.settings import Flags

from tests.captured import captured
from tests.described import describe, mistake

pytestmark = pytest.mark.usefixtures("script")

TWO = {"nnodes": "2", "nproc_per_node": "1"}


@pytest.mark.parametrize("name", ["task.3", "shared.1", "node.0"])
def test_under_slurm_all_is_known(name: str) -> None:
    """Ranks, address and port are the step's."""
    job = describe("train.py", flags={"exec": True}, environ=captured(name)).job

    assert job.exec == Fact(value=True, origin="--exec")


def test_two_nodes_of_one_worker_each() -> None:
    """With a rank and an address, no agent needs to join."""
    job = describe("train.py", flags=TWO | {"exec": True, "node_rank": "1", "master_addr": "a"}).job

    assert job.agent_rank == 1


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"max_restarts": "1"},
            "--exec leaves no agent, but max_restarts (--max-restarts) needs one",
            "leave one out: --exec or --max-restarts",
        ),
        (
            {"stdin_rank": "0"},
            "--exec leaves no agent, but stdin_rank (--stdin-rank) needs one",
            "leave one out: --exec or --stdin-rank",
        ),
        (
            {"contain": True},
            "--exec leaves no agent, but contain (--contain) needs one",
            "leave one out: --exec or --contain",
        ),
        (
            {"hang_timeout": "60"},
            "--exec leaves no agent, but hang_timeout (--hang-timeout) needs one",
            "leave one out: --exec or --hang-timeout",
        ),
        (
            {"log_dir": "logs"},
            "--exec leaves no agent, but log_dir (--log-dir) needs one",
            "leave one out: --exec or --log-dir",
        ),
        (
            {"redirects": "3"},
            "--exec leaves no agent, but redirects (--redirects) needs one",
            "leave one out: --exec or --redirects",
        ),
        (
            {"local_ranks_filter": "0"},
            "--exec leaves no agent, but local_ranks_filter (--local-ranks-filter) needs one",
            "leave one out: --exec or --local-ranks-filter",
        ),
        (
            {"log_line_prefix_template": "${rank} "},
            "--exec leaves no agent, but log_line_prefix_template (--log-line-prefix-template) needs one",
            "leave one out: --exec or --log-line-prefix-template",
        ),
        (
            {"events": "events.jsonl"},
            "--exec leaves no agent, but events (--events) needs one",
            "leave one out: --exec or --events",
        ),
        (
            TWO | {"node_rank": "0", "rdzv_endpoint": "a:1"},
            "--exec leaves no agent, but an agent must listen at a:1 (--rdzv-endpoint)",
            "give --master-addr and --master-port instead",
        ),
        (
            TWO | {"master_addr": "a"},
            "--exec leaves no agent that could join and get a rank",
            "give --node-rank",
        ),
    ],
)
def test_options_that_need_an_agent(flags: Flags, message: str, hint: str) -> None:
    """Both sides of the contradiction are named."""
    assert mistake("train.py", flags={**flags, "exec": True}) == (message, hint)
