"""Options: how nodes become one job."""

from clusterrun.sources.options.option import Group, Option, switch_option
from clusterrun.sources.options.values import names, numbers, paths

RDZV_TIMEOUT = Option(
    "rdzv_timeout",
    parse=numbers.seconds,
    default=600.0,
    metavar="SECONDS",
    help="The time that all nodes have to come",
    group=Group.JOINING,
)
LAST_CALL_TIMEOUT = Option(
    "last_call_timeout",
    parse=numbers.seconds,
    default=30.0,
    metavar="SECONDS",
    help="With --nnodes MIN:MAX, the time that others have to come once MIN nodes are there",
    group=Group.JOINING,
)
TOKEN_FILE = Option(
    "token_file",
    parse=paths.path,
    default="",
    metavar="FILE",
    help="A file with a secret that all nodes must hold; CLUSTERRUN_TOKEN holds the secret itself",
    group=Group.JOINING,
    default_words="of the scheduler's job, else none",
)
STRICT_JOIN = switch_option(
    "strict_join",
    help="Refuse nodes whose script, arguments or versions differ, instead of a warning",
    group=Group.JOINING,
)
RUN_ID = Option(
    "run_id",
    parse=names.run_id,
    default="",
    metavar="ID",
    help="The name of this run, the same on all its nodes",
    group=Group.JOINING,
    aliases=("rdzv_id",),
    default_words="chosen at the start",
    common_in_scripts=True,
    is_derived=True,
)
