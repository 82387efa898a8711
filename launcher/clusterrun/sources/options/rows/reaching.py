"""Options: how other hosts are reached."""

from clusterrun.domain.job import NodeLauncher
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import choices, words

LAUNCHER = Option(
    "launcher",
    parse=choices.node_launcher,
    default=NodeLauncher.NONE,
    metavar="none|ssh",
    help=(
        "What starts the agents of a job: none: each is started by hand or by a scheduler; ssh: "
        "this command, by ssh on each host of --hosts or --hostfile"
    ),
    common_in_scripts=True,
)
SSH_OPTIONS: Option[tuple[str, ...]] = Option(
    "ssh_options",
    parse=words.ssh_options,
    default=(),
    metavar="OPTIONS",
    help="Options for ssh, quoted as for a shell: '-p 2222 -J gate'; those of ssh_config hold, too",
    default_words="none",
)
