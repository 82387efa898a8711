"""Options: what is written to files."""

from clusterrun.domain.streams import StreamChoice
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import output, paths

LOG_DIR: Option[str | None] = Option(
    "log_dir",
    parse=paths.path,
    default=None,
    metavar="DIR",
    help="Also write what each worker prints to files in this folder",
    default_words="no files; clusterrun-logs if another option asks for files",
    common_in_scripts=True,
)
REDIRECTS: Option[StreamChoice | None] = Option(
    "redirects",
    parse=output.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help=(
        "Write standard output (1), standard error (2) or both (3) of all workers, or of those "
        "named, only to their log files"
    ),
    short="r",
    default_words="none",
)
TEE: Option[StreamChoice | None] = Option(
    "tee",
    parse=output.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help="Print these streams and, with --log-dir, also write them to log files",
    short="t",
    default_words="all streams, if --log-dir is given and nothing is redirected",
)
EVENTS: Option[str | None] = Option(
    "events",
    parse=paths.file_path,
    default=None,
    metavar="FILE",
    help=(
        "Append a line of JSON to this file for each event of the job; %n in its name is the node's"
        " rank"
    ),
    default_words="no file",
)
