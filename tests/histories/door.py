"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.bounds import GlobalRank as GlobalRank
from clusterrun.bounds import LocalRank as LocalRank
from clusterrun.cpuset import runs as runs
from clusterrun.job.options import ElasticJoin as ElasticJoin
from clusterrun.job.options import OnHang as OnHang
from clusterrun.planning.plan import NodePlan as NodePlan
from clusterrun.planning.plan import World as World
from clusterrun.policy import actions as actions
from clusterrun.policy import events as events
from clusterrun.policy import job_events as job_events
from clusterrun.policy import looks as looks
from clusterrun.policy import messages as messages
from clusterrun.policy import outcome
from clusterrun.policy.coordinator import Coordinator as Coordinator
from clusterrun.policy.fates import conclude as conclude
from clusterrun.policy.fates import done as done
from clusterrun.policy.fates import fates_of as fates_of
from clusterrun.policy.messages import Claim as Claim
from clusterrun.policy.messages import Refusal as Refusal
from clusterrun.policy.messages import Standby as Standby
from clusterrun.policy.node import Attempt as Attempt
from clusterrun.policy.notices import ended_while_waiting as ended_while_waiting
from clusterrun.policy.outcome import Evidence as Evidence
from clusterrun.policy.outcome import Fate as Fate
from clusterrun.policy.outcome import Outcome as Outcome
from clusterrun.policy.outcome import Reason as Reason
from clusterrun.policy.outcome import RestartProgress as RestartProgress
from clusterrun.policy.stacks import StackGroup as StackGroup
from clusterrun.policy.succession import NO_SUCCESSOR as NO_SUCCESSOR
from clusterrun.policy.succession import Search as Search
from clusterrun.policy.terms import Terms as Terms
from clusterrun.signals import SignalReceived as SignalReceived

outcomes = outcome
