"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.domain.ranks import GlobalRank as GlobalRank
from clusterrun.domain.ranks import LocalRank as LocalRank
from clusterrun.policy import actions as actions
from clusterrun.policy import events as events
from clusterrun.policy import messages as messages
from clusterrun.policy.event_source import NEVER as NEVER
from clusterrun.policy.node import Attempt as Attempt
from clusterrun.policy.node import Phase as Phase
from clusterrun.policy.node import Rules as Rules
from clusterrun.suspend import HOLD as HOLD
