"""What the tests of planning with services import of the inner modules, beside ``tests/planning/door.py``."""

from clusterrun.job.program import COMMAND_LINE as COMMAND_LINE
from clusterrun.job.services import Service as Service
from clusterrun.job.values import RankSet as RankSet
from clusterrun.planning.node_plan import plan_node as plan_node
from clusterrun.planning.plan import ProgramOnNode as ProgramOnNode
from clusterrun.planning.plan import ProgramWorld as ProgramWorld
from clusterrun.planning.plan import WorkerPlan as WorkerPlan
from clusterrun.planning.preparation import preparation_of as preparation_of
from clusterrun.planning.services import LONGEST_LIST as LONGEST_LIST
from clusterrun.planning.services import addresses_of as addresses_of
from clusterrun.planning.services import main_workers as main_workers
from clusterrun.planning.services import shares_on as shares_on
from clusterrun.planning.services import with_old_values as with_old_values
