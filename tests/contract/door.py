"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import COMMANDS
from clusterrun.cli.entry import main as main
from clusterrun.job.options import OPTIONS as OPTIONS
from clusterrun.network.channel import How as How
from clusterrun.policy import node as node
from clusterrun.policy import restarts as restarts
from clusterrun.policy import service_progress as service_progress
from clusterrun.policy.node import SECONDS_OF_ECHO as SECONDS_OF_ECHO
from clusterrun.ports import program as program
from clusterrun.run import launch as launch
from clusterrun.workers import fork_server_client as fork_server_client
from clusterrun.workers.fork_server.preloading.packages import (
    SAME_AFTER_A_FORK as SAME_AFTER_A_FORK,
)
from clusterrun.workers.fork_server.preloading.packages import (
    SAME_IF_IMPORTED_LATER as SAME_IF_IMPORTED_LATER,
)
from clusterrun.workers.fork_server.preloading.torch_variables import (
    follower_reads as follower_reads,
)

OWN_OPTIONS = {command.word: command.own_rows for command in COMMANDS}
"""Those that only one command takes, by its word."""
