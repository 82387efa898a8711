"""``clusterrun watch [RUN]``: a live table of all ranks of a running job."""

import signal
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.cli.chosen_run import answer_of, chosen_run
from clusterrun.cli.printing import is_on_terminal, print_text
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import AgentGone, NoAnswer, RunningJob, ask
from clusterrun.policy.looks import JobLook, LookAtRanks, MissingNode
from clusterrun.policy.messages import Ask
from clusterrun.processes import stop_as_by_default
from clusterrun.report.ranks import JobStatus, live_lines

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

SECONDS_BETWEEN_LOOKS = 1.0

ADVICE = "Ctrl-C ends watching, not the job"


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Show the table until the run ends, then what it was; the terminal is left as it was.

    Raises:
        NoJobError: no run has an agent on this host, or it does not answer.
        UsageError: the line names no run that is there, or standard output is no terminal.

    """
    if not is_on_terminal():
        raise UsageError(
            "clusterrun watch draws on a terminal, and standard output is not one",
            f"type {called} status, or {called} status --json for a program",
        )
    # Nothing else needs rich.
    from rich.console import Console
    from rich.live import Live

    job = chosen_run(line, environ, f"{called} watch")
    first = answer_of(job, Ask(1, LookAtRanks()), JobLook)
    console = Console(highlight=False)
    # Ctrl-C must not leave the terminal as it is drawn.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            signal.signal(signal.SIGTSTP, lambda _number, _frame: _pause(live))
            for status in statuses(job, first):
                live.update(screen_of(status, *console.size), refresh=True)
                time.sleep(SECONDS_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        return ExitCode.SUCCESS
    return print_text(f"run {job.described.run_id} has ended, or this node's agent")


def statuses(job: RunningJob, first: JobLook) -> Iterator[JobStatus]:
    """Yield the status by the ``first`` look, which was just now, then by one look after the other.

    It ends once the agent has ended.
    """
    known, before = job.described, first
    began = looked_at = time.monotonic()
    status = JobStatus.of(known, first)
    while True:
        yield status
        try:
            now = ask(job, Ask(1, LookAtRanks()), JobLook)
        except AgentGone:
            return
        except NoAnswer:
            # The agent is stopped, and may be continued.
            silent = MissingNode(known.node_rank, known.host, "does not answer: nothing is known")
            status = replace(status, missing=(silent,))
            continue
        at = time.monotonic()
        described = replace(known, running_for=known.running_for + at - began)
        status = JobStatus.of(described, before, now, at - looked_at)
        before, looked_at = now, at


def screen_of(status: JobStatus, width: int, height: int) -> "Text":
    """Return what a terminal of this size shows."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(live_lines(status, width, height, ADVICE)):
        text.append("\n" if number else "")
        text.append(line.text, style="bold red" if line.is_bad else "")
    return text


def _pause(live: "Live") -> None:
    """Give the terminal back while the shell has it (Ctrl-Z)."""
    live.stop()
    stop_as_by_default()
    live.start(refresh=True)
