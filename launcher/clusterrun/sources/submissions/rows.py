"""The options of ``clusterrun submit``, as rooms that are not rebuilt yet take them."""

from clusterrun.job.declaring import rows_of
from clusterrun.sources.options.option import Option, as_old_row
from clusterrun.sources.submissions.options import Queued, Submit

_ROWS = rows_of(Queued, Submit)

TO = as_old_row(_ROWS["to"])
PRINT = as_old_row(_ROWS["print"])
SAVE = as_old_row(_ROWS["save"])
WAIT = as_old_row(_ROWS["wait"])
FOLLOW = as_old_row(_ROWS["follow"])
QUIET = as_old_row(_ROWS["quiet"])
JOB_NAME = as_old_row(_ROWS["job_name"])
GPUS_PER_NODE = as_old_row(_ROWS["gpus_per_node"])
CPUS_PER_GPU = as_old_row(_ROWS["cpus_per_gpu"])
MEMORY_PER_GPU = as_old_row(_ROWS["memory_per_gpu"])
TIME = as_old_row(_ROWS["time"])
PARTITION = as_old_row(_ROWS["partition"])
ACCOUNT = as_old_row(_ROWS["account"])
QOS = as_old_row(_ROWS["qos"])
CONSTRAINT = as_old_row(_ROWS["constraint"])
EXCLUSIVE = as_old_row(_ROWS["exclusive"])
ARRAY = as_old_row(_ROWS["array"])
DEPENDENCY = as_old_row(_ROWS["dependency"])
SIGNAL = as_old_row(_ROWS["signal"])
OUTPUT = as_old_row(_ROWS["output"])
ERROR = as_old_row(_ROWS["error"])
IMAGE = as_old_row(_ROWS["image"])
CONTAINER = as_old_row(_ROWS["container"])
MOUNTS = as_old_row(_ROWS["mounts"])
MODULES = as_old_row(_ROWS["modules"])
SETUP = as_old_row(_ROWS["setup"])
DIRECTIVE = as_old_row(_ROWS["directive"])
KIND = as_old_row(_ROWS["kind"])
NAMESPACE = as_old_row(_ROWS["namespace"])
GPU_RESOURCE = as_old_row(_ROWS["gpu_resource"])
NODE_SELECTOR = as_old_row(_ROWS["node_selector"])
TOLERATIONS = as_old_row(_ROWS["tolerations"])
SECRETS = as_old_row(_ROWS["secrets"])
CLAIMS = as_old_row(_ROWS["claims"])

ROWS: tuple[Option[object], ...] = tuple(
    row for row in tuple(globals().values()) if isinstance(row, Option)
)
"""All of them, in the order of the help."""
