"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.from_python.agent_process import AGENT_FILE as AGENT_FILE
from clusterrun.from_python.agent_process import AgentProcess as AgentProcess
from clusterrun.from_python.keywords import options_of as options_of
from clusterrun.from_python.messages import Request as Request
from clusterrun.from_python.pickled_call import Call as Call
from clusterrun.from_python.pickled_call import pickled as pickled
from clusterrun.from_python.spawn import SpawnContext as SpawnContext
from clusterrun.from_python.workers import (
    SECONDS_BETWEEN_JOB_AND_HOLD as SECONDS_BETWEEN_JOB_AND_HOLD,
)
from clusterrun.policy.node import SECONDS_OF_ECHO as SECONDS_OF_ECHO
from clusterrun.workers.fork_server.other_processes import stat_fields as stat_fields
from clusterrun.workers.scratch import _START_FIELD as _START_FIELD
from clusterrun.workers.scratch import _prefix as _prefix
