"""Options: what is written to files."""

from clusterrun.domain.streams import StreamChoice
from clusterrun.sources.options.option import Group, Option, switch_option
from clusterrun.sources.options.values import output, paths

LOG_DIR: Option[str | None] = Option(
    "log_dir",
    parse=paths.path,
    default=None,
    metavar="DIR",
    help="Write what each worker prints to files below this folder too",
    group=Group.LOGS,
    default_words="no files, or those that are asked for in clusterrun-logs",
    common_in_scripts=True,
    is_derived=True,
)
REDIRECTS: Option[StreamChoice | None] = Option(
    "redirects",
    parse=output.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help=(
        "Write standard output (1), standard error (2) or both (3) of all workers or of those named"
        " to their log files only"
    ),
    group=Group.LOGS,
    short="r",
    default_words="none",
)
TEE: Option[StreamChoice | None] = Option(
    "tee",
    parse=output.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help="Print them and, with a --log-dir, write them to log files",
    group=Group.LOGS,
    short="t",
    default_words="all, if there is a --log-dir and nothing is redirected",
)
WORKERLOG = switch_option(
    "workerlog",
    help="One log file for both streams of a worker, and DIR/workerlog.N is that of local rank N",
    group=Group.LOGS,
)
EVENTS: Option[str | None] = Option(
    "events",
    parse=paths.file_path,
    default=None,
    metavar="FILE",
    help=(
        "Append a line of JSON to this file for each thing that happens to the job; %n in its name"
        " stands for the node's rank"
    ),
    group=Group.LOGS,
    default_words="no file",
)
