"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import WORDS as WORDS
from clusterrun.cli.main import run_command_line as run_command_line
from clusterrun.network.control_client import find_jobs as find_jobs
from clusterrun.network.handshake import VERSION as VERSION
