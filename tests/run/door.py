"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.domain.plan import NodePlan as NodePlan
from clusterrun.domain.plan import WorkerPlan as WorkerPlan
from clusterrun.domain.ranks import RankSet as RankSet
from clusterrun.domain.streams import LostOutput as LostOutput
from clusterrun.errors import ExitCode as ExitCode
from clusterrun.policy.outcome import HelperFailed as HelperFailed
from clusterrun.policy.outcome import Interrupted as Interrupted
from clusterrun.policy.outcome import Outcome as Outcome
from clusterrun.policy.outcome import Reason as Reason
from clusterrun.policy.outcome import Succeeded as Succeeded
from clusterrun.policy.outcome import WorkerFailed as WorkerFailed
from clusterrun.run import wrapped_ranks as wrapped_ranks
from clusterrun.run.attempts import remarks_of as remarks_of
from clusterrun.run.final_report import PARENTS_ERROR_FILE as PARENTS_ERROR_FILE
from clusterrun.run.final_report import JobEnd as JobEnd
from clusterrun.run.final_report import copy_error_file as copy_error_file
from clusterrun.run.final_report import end_while_joining as end_while_joining
from clusterrun.run.final_report import exit_code_and_rest as exit_code_and_rest
from clusterrun.run.wrapped_ranks import HOST as HOST
from clusterrun.run.wrapped_ranks import with_wrappers as with_wrappers
from clusterrun.workers.relay.relay_client import RelayClient as RelayClient
