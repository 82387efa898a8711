"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.domain.bounds import LONGEST_NAME as LONGEST_NAME
from clusterrun.domain.bounds import as_line as as_line
from clusterrun.domain.bounds import as_name as as_name
from clusterrun.domain.bounds import as_run_id as as_run_id
from clusterrun.domain.bounds import as_text as as_text
from clusterrun.domain.cpuset import CpuSet as CpuSet
from clusterrun.domain.endpoint import Endpoint as Endpoint
from clusterrun.domain.ranks import RankSet as RankSet
from clusterrun.domain.streams import Std as Std
from clusterrun.domain.streams import StreamChoice as StreamChoice
from clusterrun.job.job import SchedulerJob as SchedulerJob
from clusterrun.policy.stacks import EXITED as EXITED
from clusterrun.policy.stacks import LEFT_OUT as LEFT_OUT
from clusterrun.policy.stacks import LONGEST as LONGEST
from clusterrun.policy.stacks import GroupedStacks as GroupedStacks
from clusterrun.policy.stacks import StackGroup as StackGroup
from clusterrun.policy.stacks import grouped as grouped
from clusterrun.policy.stacks import lacks_stack as lacks_stack
from clusterrun.policy.stacks import place_of as place_of
from clusterrun.policy.stacks import waited_for as waited_for
from clusterrun.policy.stacks import who_differs as who_differs
from clusterrun.policy.tracebacks import beginning_of_traceback as beginning_of_traceback
