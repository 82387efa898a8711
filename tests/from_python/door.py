"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.clients.python import command as command
from clusterrun.clients.python import wire as wire
from clusterrun.clients.python.call import FunctionCall as FunctionCall
from clusterrun.clients.python.call import options_of as options_of
from clusterrun.clients.python.call import pickled as pickled
from clusterrun.clients.python.command import CalledCommand as CalledCommand
from clusterrun.clients.python.launch import SpawnContext as SpawnContext
from clusterrun.clients.python.workers import SECONDS_TO_COME_BACK as SECONDS_TO_COME_BACK
from clusterrun.policy.node import SECONDS_OF_ECHO as SECONDS_OF_ECHO

AGENT_MODULE = "clusterrun.cli.entry"
"""In the command line of the agent."""
