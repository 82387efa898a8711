"""Options: how nodes become one job."""

from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import names, numbers, paths

RDZV_TIMEOUT = Option(
    "rdzv_timeout",
    parse=numbers.seconds,
    default=600.0,
    metavar="SECONDS",
    help="How long to wait for all nodes to join",
)
LAST_CALL_TIMEOUT = Option(
    "last_call_timeout",
    parse=numbers.seconds,
    default=30.0,
    metavar="SECONDS",
    help="With --nnodes MIN:MAX, how long to wait for more nodes after MIN have joined",
)
TOKEN_FILE = Option(
    "token_file",
    parse=paths.path,
    default="",
    metavar="FILE",
    help="A file with a secret that all nodes must hold; CLUSTERRUN_TOKEN holds the secret itself",
    default_words="made from the scheduler's job, else none",
)
RUN_ID = Option(
    "run_id",
    parse=names.run_id,
    default="",
    metavar="ID",
    help="The name of this run, the same on all nodes",
    aliases=("rdzv_id",),
    default_words="chosen at the start",
    common_in_scripts=True,
)
