"""The two processes that help the agent of a node, and the folder that they share."""

from typing import NamedTuple

from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.scratch import Scratch


class HelperProcesses(NamedTuple):
    """The helper processes, and the folder for files that workers write for the launcher."""

    relay: RelayClient
    fork_server: ForkServer
    scratch: Scratch
