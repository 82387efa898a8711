"""Options: which CPUs and GPUs a worker gets."""

from clusterrun.domain.job import MappedGpu, NumaBinding, NumaMemory
from clusterrun.sources.numa_map_file import numa_map
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import choices, numbers

NUMA_BINDING = Option(
    "numa_binding",
    parse=choices.numa_binding,
    default=NumaBinding.AUTO,
    metavar="auto|node|near|socket|exclusive|core-complex|none",
    help=(
        "The CPUs of each worker: those near its GPU (node, near, socket), those near it that no "
        "other worker has (exclusive, core-complex), or all (none); auto: near"
    ),
)
NUMA_MEMORY = Option(
    "numa_memory",
    parse=choices.numa_memory,
    default=NumaMemory.NONE,
    metavar="none|preferred|bind",
    help=(
        "The memory of each worker: wherever it is first used (none), first that of its GPU's NUMA "
        "node (preferred), or only that (bind)"
    ),
)
NUMA_MAP: Option[tuple[MappedGpu, ...]] = Option(
    "numa_map",
    parse=numa_map,
    default=(),
    metavar="GPU=CPUS,...|FILE",
    help=(
        "Where GPUs are, if the machine reports it wrong: GPU=CPUS or GPU=node N, a GPU by index, "
        "PCI address or UUID; or a file of such lines"
    ),
    default_words="what the machine reports",
)
NUMA_STRICT = switch_option(
    "numa_strict",
    help="Start nothing if a worker cannot be bound as asked, instead of printing a remark",
)
GPUS_PER_WORKER: Option[int | None] = Option(
    "gpus_per_worker",
    parse=numbers.gpus_per_worker,
    default=None,
    metavar="K",
    help=(
        "Number of GPUs of each worker: worker r has K GPUs from number r times K; 0: workers share"
        " GPUs, or use none"
    ),
    default_words="one",
)
VIRTUAL_LOCAL_RANK = switch_option(
    "virtual_local_rank",
    help="Show each worker only its own GPUs, as if it were alone: LOCAL_RANK is 0",
)
