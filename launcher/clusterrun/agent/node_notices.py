"""The agent's notices: one-line messages while a job runs."""

import signal
from collections.abc import Iterable, Iterator, Sequence

from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import runs
from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import exit_code_of_signal

OUTPUT_CLOSED = "standard output is closed: stopping all workers"
"""Nothing reads it any more (``| head``)."""

LOST_BY_OTHERS = "the other nodes have lost this one"
"""Why this node stops."""


def stopping(number: int, workers: int, grace: float, *, to_fork_server: bool = False) -> str:
    """Return the notice that a signal ends the job.

    After Ctrl-C it is the only line, unless a worker has to be killed.
    """
    what, again = _signal_and_repeat(number)
    if to_fork_server:
        what = f"{signal_name(number)} to the workers' parent process"
    return (
        f"{what}: stopping {counted(workers, 'worker')}"
        f" (grace {grace:g} s, {again} again kills at once);"
        f" exit code {exit_code_of_signal(number)}"
    )


def stopping_by(command: str, workers: int, grace: float) -> str:
    """Return the notice that a command of the user's ends the job."""
    return (
        f"{command}: stopping {counted(workers, 'worker')}"
        f" (grace {grace:g} s, {command} --now kills at once);"
        f" exit code {exit_code_of_signal(signal.SIGTERM)}"
    )


def killing_now(command: str, workers: int) -> str:
    """Return the notice that a command of the user's ends the job without a grace period."""
    return (
        f"{command} --now: killing {counted(workers, 'worker')};"
        f" exit code {exit_code_of_signal(signal.SIGTERM)}"
    )


def interrupted() -> str:
    """Return the notice that Ctrl-C ended the one worker, which has the terminal."""
    return f"interrupted: exit code {exit_code_of_signal(signal.SIGINT)}"


def killing_instead(number: int, workers: int) -> str:
    """Return the notice that a second signal ends a job that is being suspended."""
    return (
        f"{signal_name(number)} again: killing {counted(workers, 'worker')};"
        f" exit code {exit_code_of_signal(number)}"
    )


def killing(workers: int, grace: float) -> str:
    """Return the notice that the grace period is over."""
    return f"{counted(workers, 'worker')} did not exit within {grace:g} s: sending SIGKILL"


def still_runs(rank: int, seconds: float, place: str, then: str) -> str:
    """Return the notice that a worker has failed and does not exit."""
    where = f", in {place}" if place else ""
    return f"rank {rank} failed {seconds:.0f} s ago and has not exited{where}: {then}"


def killed_after(grace: float) -> str:
    """Return what becomes of a worker that does not exit."""
    return f"it is killed {grace:g} s after its failure (--shutdown-timeout gives it longer)"


def killed_late(rank: int, grace: float) -> str:
    """Return the notice that a worker which has failed is killed, and why."""
    return f"rank {rank} did not exit within {grace:g} s (--shutdown-timeout) of its failure: killing it"


def stopping_here(why: str, workers: int) -> str:
    """Return the notice that what happened on another node ends the job on this one."""
    return f"{why}: stopping {counted(workers, 'worker')} here"


def killing_here(why: str, workers: int) -> str:
    """Return the notice that the other nodes may go on without this one."""
    return f"{why}: killing {counted(workers, 'worker')} here, since the other nodes may go on"


def killing_at_once(why: str, workers: int) -> str:
    """Return the notice that a user of another node ends the job without a grace period."""
    return f"{why}: killing {counted(workers, 'worker')} here"


def no_restart(number: int) -> str:
    """Return the notice that a signal came before the next attempt."""
    what, _ = _signal_and_repeat(number)
    return f"{what}: no restart; exit code {exit_code_of_signal(number)}"


def stopping_others(number: int) -> str:
    """Return the notice that a signal ends the job on the other nodes; here all workers have exited."""
    what, again = _signal_and_repeat(number)
    return (
        f"{what}: the other nodes stop their workers ({again} again does not wait for them);"
        f" exit code {exit_code_of_signal(number)}"
    )


def not_handled(number: int, local_ranks: Iterable[int]) -> str:
    """Return the notice that workers got no signal since it would have killed them."""
    ranks = ", ".join(runs(local_ranks))
    name = signal_name(number)
    return (
        f"{name} was not passed on to local rank {ranks}:"
        " it has no handler and would have been killed"
    )


def about_fork_server(printed: str, refused: Sequence[str]) -> Iterator[str]:
    """Yield the notices about the start of the fork server."""
    if printed:
        yield f"the workers' interpreter printed when it started: {printed}"
    if refused:
        yield (
            f"the kernel refuses {' and '.join(refused)}:"
            " if clusterrun is killed, processes of the job may live on"
        )


def binding_differs(local_rank: int, remark: str) -> str:
    """Return the notice that a worker is not bound as planned."""
    return f"local rank {local_rank}: {remark}"


def _signal_and_repeat(number: int) -> tuple[str, str]:
    """Return what happened, and what a user does to send the signal again."""
    name = signal_name(number)
    return ("interrupted", "Ctrl-C") if number == signal.SIGINT else (name, name)
