"""Options: when a node is lost."""

from clusterrun.domain.job import ElasticJoin
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import choices, numbers

SPARES = Option(
    "spares",
    parse=numbers.spare_count,
    default=0,
    metavar="N",
    help="Number of nodes beyond --nnodes that wait to take the places of lost ones",
)
MAX_NODE_LOSSES: Option[int | None] = Option(
    "max_node_losses",
    parse=numbers.spare_count,
    default=None,
    metavar="N",
    help="How many nodes a job may lose that goes on without them, as with --spares",
    default_words="no limit",
)
REJOIN_TIMEOUT = Option(
    "rejoin_timeout",
    parse=numbers.seconds,
    default=0.0,
    metavar="SECONDS",
    help="How long a job that has lost a node waits for another one to take its place",
)
EXCLUDE_AFTER = Option(
    "exclude_after",
    parse=numbers.failure_count,
    default=0,
    metavar="N",
    help="Leave a node out in favour of another after N failures by its machine",
    default_words="never",
)
CHECK_NODES = switch_option(
    "check_nodes",
    help="Check each machine as clusterrun doctor does, and leave a node that fails out",
)
ELASTIC_MULTIPLE = Option(
    "elastic_multiple",
    parse=numbers.node_multiple,
    default=1,
    metavar="K",
    help="With --nnodes MIN:MAX, a multiple of K nodes work, and the others wait",
)
ELASTIC_JOIN = Option(
    "elastic_join",
    parse=choices.elastic_join,
    default=ElasticJoin.RESTART,
    metavar="restart|now",
    help=(
        "With --nnodes MIN:MAX, when a node that joins later is let in: when all workers restart"
        " for another reason, or now, by a restart for it"
    ),
)
