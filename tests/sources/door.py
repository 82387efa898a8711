"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import find_command as find_command
from clusterrun.domain.submissions.submission import ArrayRange as ArrayRange
from clusterrun.domain.submissions.submission import Dependency as Dependency
from clusterrun.domain.submissions.submission import DependencyKind as DependencyKind
from clusterrun.domain.submissions.submission import Gpus as Gpus
from clusterrun.domain.submissions.submission import JobArray as JobArray
from clusterrun.domain.submissions.submission import SignalBeforeEnd as SignalBeforeEnd
from clusterrun.errors import UsageError as UsageError
from clusterrun.job.declaring import Fact as Fact
from clusterrun.job.job_file import read_job_file as read_job_file
from clusterrun.sources.submissions import requests as requests
from clusterrun.sources.submissions.describe import describe_submission as describe_submission
from clusterrun.sources.submissions.node_command import path_of_launcher as path_of_launcher
