"""Options: when a job is suspended."""

from clusterrun.errors import ExitCode
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import numbers, signals, words

SUSPEND_SIGNAL: Option[int | None] = Option(
    "suspend_signal",
    parse=signals.suspend_signal,
    default=None,
    metavar="SIGNAL",
    help="A signal to any agent, such as USR1, after which all ranks save at one step and end",
    default_words="none; SIGTERM asks for that where the script calls suspend.requested()",
)
SUSPEND_GRACE = Option(
    "suspend_grace",
    parse=numbers.seconds,
    default=30.0,
    metavar="SECONDS",
    help="How long all ranks may take to reach the agreed step and to save",
)
SUSPEND_EXIT_CODE = Option(
    "suspend_exit_code",
    parse=numbers.failure_code,
    default=int(ExitCode.SUSPENDED),
    metavar="CODE",
    help="The exit code once all ranks have saved, for the scheduler",
)
SUSPEND_BEFORE: Option[float | None] = Option(
    "suspend_before",
    parse=numbers.seconds,
    default=None,
    metavar="SECONDS",
    help="Suspend the job so long before the end that Slurm, PBS, LSF or Flux gives it",
    default_words="never",
)
SUSPEND_HOOK: Option[tuple[str, ...]] = Option(
    "suspend_hook",
    parse=words.command,
    default=(),
    metavar="COMMAND",
    help="Suspend the job once COMMAND, run on node 0, exits with 0; COMMAND ready follows",
    default_words="none",
)
REQUEUE = switch_option(
    "requeue",
    help="After a suspension, have Slurm, PBS, LSF or Flux put the job back into its queue",
)
