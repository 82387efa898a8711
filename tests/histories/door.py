"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.bounds import GlobalRank as GlobalRank
from clusterrun.bounds import LocalRank as LocalRank
from clusterrun.cpuset import runs as runs
from clusterrun.job.job import MAIN as MAIN
from clusterrun.job.job import ProgramKind as ProgramKind
from clusterrun.job.job import WorkerProgram as WorkerProgram
from clusterrun.job.options import OnFailure as OnFailure
from clusterrun.job.options import OnHang as OnHang
from clusterrun.job.services import Service as Service
from clusterrun.planning.plan import NodePlan as NodePlan
from clusterrun.planning.plan import World as World
from clusterrun.policy import actions as actions
from clusterrun.policy import answers as answers
from clusterrun.policy import events as events
from clusterrun.policy import job_events as job_events
from clusterrun.policy import messages as messages
from clusterrun.policy import nccl as nccl
from clusterrun.policy import outcome
from clusterrun.policy import queries as queries
from clusterrun.policy.coordinator import Coordinator as Coordinator
from clusterrun.policy.coordinator import Running as Running
from clusterrun.policy.fates import conclude as conclude
from clusterrun.policy.fates import fates_of as fates_of
from clusterrun.policy.node import Attempt as Attempt
from clusterrun.policy.notices import ended_while_waiting as ended_while_waiting
from clusterrun.policy.stacks import StackGroup as StackGroup
from clusterrun.policy.terms import Terms as Terms
from clusterrun.signals import SignalReceived as SignalReceived

outcomes = outcome
