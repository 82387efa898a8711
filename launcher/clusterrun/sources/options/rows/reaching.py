"""Options: how other hosts are reached."""

from clusterrun.domain.job import NodeLauncher
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import choices, numbers, words

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
SSH_PARALLEL = Option(
    "ssh_parallel",
    parse=numbers.connection_count,
    default=10,
    metavar="N",
    help="How many connections ssh opens at a time; one sshd accepts 10 unless set otherwise",
)
SSH_TIMEOUT = Option(
    "ssh_timeout",
    parse=numbers.seconds,
    default=30.0,
    metavar="SECONDS",
    help="How long each host may take to answer, login shell included",
)
