"""--exec: what can't be had without an agent."""

import pytest

from tests.captured import captured
from tests.command_lines import Flags
from tests.described import describe, mistake
from tests.job.door import Fact

pytestmark = pytest.mark.usefixtures("script")

TWO = {"nnodes": "2", "nproc_per_node": "1"}


@pytest.mark.parametrize("name", ["task.3", "shared.1", "node.0"])
def test_under_slurm_all_is_known(name: str) -> None:
    """Ranks, address and port are the step's."""
    job = describe("train.py", flags={"exec": True}, environ=captured(name)).job

    assert job.fact("exec") == Fact(value=True, origin="--exec")


def test_two_nodes_of_one_worker_each() -> None:
    """With a rank and an address, no agent needs to join."""
    job = describe("train.py", flags=TWO | {"exec": True, "node_rank": "1", "master_addr": "a"}).job

    assert job.agent_rank == 1


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"node_rank": "0", "rdzv_endpoint": "a:1"},
            "--exec leaves no agent, but an agent must listen at a:1 (--rdzv-endpoint)",
            "give --master-addr and --master-port instead",
        ),
        (
            {"master_addr": "a"},
            "--exec leaves no agent that could join and get a rank",
            "give --node-rank",
        ),
    ],
)
def test_nodes_that_need_an_agent(flags: Flags, message: str, hint: str) -> None:
    """Without one, address and rank must be known."""
    assert mistake("train.py", flags={**TWO, **flags, "exec": True}) == (message, hint)
