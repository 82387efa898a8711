"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.agent import actions as actions
from clusterrun.agent.attempt_state import AttemptState as AttemptState
from clusterrun.agent.attempt_state import Phase as Phase
from clusterrun.agent.attempt_state import Rules as Rules
from clusterrun.agent.decide import decide as decide
from clusterrun.coordination import agreement as agreement
from clusterrun.coordination.agreement import Agreement as Agreement
from clusterrun.coordination.agreement import Decided as Decided
from clusterrun.coordination.agreement import GiveUp as GiveUp
from clusterrun.coordination.agreement import NotWanted as NotWanted
from clusterrun.coordination.agreement import Saving as Saving
from clusterrun.coordination.agreement import Succeed as Succeed
from clusterrun.domain import events as events
from clusterrun.domain import messages as messages
from clusterrun.domain.event_source import NEVER as NEVER
from clusterrun.domain.ranks import GlobalRank as GlobalRank
from clusterrun.domain.ranks import LocalRank as LocalRank
from clusterrun.suspend import HOLD as HOLD
