"""Options: clusterrun itself."""

from pathlib import Path

from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import paths

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
