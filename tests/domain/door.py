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
