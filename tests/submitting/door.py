"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import find_command as find_command
from clusterrun.clients.submit import ROWS as ROWS
from clusterrun.clients.submit import Gpus as Gpus
from clusterrun.clients.submit import JobState as JobState
from clusterrun.clients.submit import QueuedJob as QueuedJob
from clusterrun.clients.submit import Submission as Submission
from clusterrun.clients.submit import describe as describe
from clusterrun.clients.submit import follow as follow
from clusterrun.clients.submit import path_of_launcher as path_of_launcher
from clusterrun.clients.submit import script_of as script_of
from clusterrun.clients.submit import state_of as state_of
from clusterrun.clients.submit import submit as submit
from clusterrun.errors import MachineError as MachineError
from clusterrun.errors import UsageError as UsageError
from clusterrun.job.this_process import CommandAnswer as CommandAnswer
