"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.agent import actions as actions
from clusterrun.agent.attempt_state import AttemptState as AttemptState
from clusterrun.agent.attempt_state import Rules as Rules
from clusterrun.agent.attempt_state import Suspending as Suspending
from clusterrun.agent.conclusion import conclude as conclude
from clusterrun.agent.conclusion import fates_of as fates_of
from clusterrun.agent.decide import decide as decide
from clusterrun.agent.suspending import in_next_attempt as in_next_attempt
from clusterrun.coordination import coordinator
from clusterrun.coordination import coordinator_actions as coordinator_actions
from clusterrun.coordination import coordinator_events as coordinator_events
from clusterrun.coordination.job_notices import ended_while_waiting as ended_while_waiting
from clusterrun.coordination.job_state import JobState as JobState
from clusterrun.coordination.next_attempt import restart_policy
from clusterrun.coordination.next_attempt.loss_notices import NO_SUCCESSOR as NO_SUCCESSOR
from clusterrun.coordination.next_attempt.reform_rules import reform_rules_of as reform_rules_of
from clusterrun.coordination.succession import search as search
from clusterrun.coordination.succession.takeover import taken_over as taken_over
from clusterrun.domain import events as events
from clusterrun.domain import looks as looks
from clusterrun.domain import messages as messages
from clusterrun.domain import outcome
from clusterrun.domain.cpuset import runs as runs
from clusterrun.domain.messages import Refusal as Refusal
from clusterrun.domain.outcome import Evidence as Evidence
from clusterrun.domain.outcome import Fate as Fate
from clusterrun.domain.outcome import Outcome as Outcome
from clusterrun.domain.outcome import Reason as Reason
from clusterrun.domain.outcome import RestartProgress as RestartProgress
from clusterrun.domain.ranks import GlobalRank as GlobalRank
from clusterrun.domain.ranks import LocalRank as LocalRank
from clusterrun.domain.stacks import StackGroup as StackGroup
from clusterrun.domain.succession import Claim as Claim
from clusterrun.domain.succession import Standby as Standby
from clusterrun.domain.suspension import SuspendRules as SuspendRules
from clusterrun.domain.world import World as World
from clusterrun.job.job import LastCall as LastCall
from clusterrun.job.options import ElasticJoin as ElasticJoin
from clusterrun.job.options import OnHang as OnHang

decide_for_all = coordinator.decide
due = coordinator.due
outcomes = outcome
restart_rules_of = restart_policy.rules_of
