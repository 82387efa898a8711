"""The launcher's one-line notices while a job runs; the report at its end is ``clusterrun.report``'s."""

import signal
from collections.abc import Iterable, Iterator, Sequence

from clusterrun.domain.cpuset import runs
from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import exit_code_of_signal


def stopping(number: int, workers: int, grace: float, *, to_fork_server: bool = False) -> str:
    """Say that a signal ends the job, with which exit code, and how to hurry.

    For Ctrl-C this is the only line there is, unless a worker has to be killed.
    """
    name = signal_name(number)
    who, again = ("interrupted", "Ctrl-C") if number == signal.SIGINT else (name, name)
    who = f"{name} to the workers' parent process" if to_fork_server else who
    return (
        f"{who}: stopping {_workers(workers)} (grace {grace:g} s, {again} again kills at once);"
        f" exit code {exit_code_of_signal(number)}"
    )


def interrupted() -> str:
    """Say that Ctrl-C ended the one worker, which had the terminal and got it without us."""
    return f"interrupted: exit code {exit_code_of_signal(signal.SIGINT)}"


def killing(workers: int, grace: float) -> str:
    """Say that the grace is over."""
    return f"{_workers(workers)} did not end within {grace:g} s: sending SIGKILL"


def output_closed() -> str:
    """Say why the job ends although nothing failed."""
    return "the reader of our standard output has gone: stopping"


def stopping_here(why: str, workers: int) -> str:
    """Say what happened on another node, and that it ends the job here as well."""
    return f"{why}: stopping {_workers(workers)} here"


def stopping_others(number: int) -> str:
    """Say that a signal ends the job on the other nodes: here all workers have ended before."""
    name = signal_name(number)
    who, again = ("interrupted", "Ctrl-C") if number == signal.SIGINT else (name, name)
    return (
        f"{who}: the other nodes stop their workers ({again} again does not wait for them);"
        f" exit code {exit_code_of_signal(number)}"
    )


def given_up_by_others() -> str:
    """Say that the other nodes ended the job without hearing from this one."""
    return "the other nodes have given this one up"


def not_handled(number: int, local_ranks: Iterable[int]) -> str:
    """Say which workers a forwarded signal was kept from, since it would have killed them."""
    ranks = ", ".join(runs(local_ranks))
    name = signal_name(number)
    return f"{name} was not passed on to local rank {ranks}: no handler there, it would have killed"


def about_fork_server(printed: str, refused: Sequence[str]) -> Iterator[str]:
    """Say what is remarkable about the fork server's start."""
    if printed:
        yield f"the workers' interpreter printed when it started: {printed}"
    if refused:
        yield (
            f"the kernel refuses {' and '.join(refused)}:"
            " if clusterrun is killed, processes of the job may live on"
        )


def binding_differs(local_rank: int, remark: str) -> str:
    """Say that a worker runs otherwise bound than planned."""
    return f"local rank {local_rank}: {remark}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
