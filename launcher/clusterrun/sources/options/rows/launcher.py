"""Options: clusterrun itself."""

from pathlib import Path

from clusterrun.domain.cpuset import CpuSet
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import numbers, paths

CONFIG = Option(
    "config",
    parse=paths.path,
    default="",
    metavar="FILE",
    help="A job file in YAML; flags and variables replace its values",
    default_words="none",
    common_in_scripts=True,
    in_file=False,
)
DRY_RUN = switch_option(
    "dry_run",
    help="Print each value with its origin and each worker with its place, and start nothing",
    common_in_scripts=True,
)
JSON = switch_option(
    "json",
    help="Print JSON, with --dry-run or a command such as topo or status",
    common_in_scripts=True,
)
MACHINE_ROOT: Option[Path | None] = Option(
    "machine_root",
    parse=paths.captured_machine,
    default=None,
    metavar="DIR|FILE",
    help=(
        "Plan for the machine captured in this folder or archive, with --dry-run or clusterrun topo"
    ),
    default_words="this machine",
)
ALLOWED_CPUS: Option[CpuSet | None] = Option(
    "allowed_cpus",
    parse=numbers.cpu_list,
    default=None,
    metavar="LIST",
    help="With --machine-root, the CPUs that a job may use there",
    default_words="those of the captured process",
)
CAPTURE: Option[Path | None] = Option(
    "capture",
    parse=paths.new_archive,
    default=None,
    metavar="FILE",
    help="With clusterrun topo, write what was read of this machine to this .tar.xz or .tar.gz",
    default_words="no file",
    in_file=False,
)
