"""``clusterrun suspend [RUN]``: all ranks of a running job save at one step, and the job ends."""

from collections.abc import Mapping

from clusterrun.cli.chosen_run import answer_of, chosen_run
from clusterrun.cli.json_printing import print_json
from clusterrun.cli.printing import print_text
from clusterrun.control.messages import Description, Suspend
from clusterrun.sources.settings import CommandLine


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Ask one agent of the run; all nodes of it are suspended.

    Raises:
        UsageError: no such run has an agent on this host, or it does not answer.

    """
    job = chosen_run(line, environ, f"{called} suspend")
    described = answer_of(job, Suspend(), Description)
    if "json" in line.flags:
        return print_json(described)
    return print_text(
        f"run {described.run_id} is asked to suspend: it ends once all of its ranks have saved"
    )
