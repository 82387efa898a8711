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
from clusterrun.coordination.next_attempt.reform_rules import ReformRules as ReformRules
from clusterrun.coordination.next_attempt.restart_policy import RestartRules as RestartRules
from clusterrun.domain import events as events
from clusterrun.domain import messages as messages
from clusterrun.domain import outcome
from clusterrun.domain.cpuset import runs as runs
from clusterrun.domain.outcome import Fate as Fate
from clusterrun.domain.outcome import Outcome as Outcome
from clusterrun.domain.outcome import Reason as Reason
from clusterrun.domain.ranks import GlobalRank as GlobalRank
from clusterrun.domain.ranks import LocalRank as LocalRank
from clusterrun.domain.stacks import StackGroup as StackGroup
from clusterrun.domain.suspension import SuspendRules as SuspendRules
from clusterrun.job.options import OnHang as OnHang

decide_for_all = coordinator.decide
due = coordinator.due
outcomes = outcome
