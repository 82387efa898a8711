"""Putting a suspended job back into the queue of its scheduler."""

import signal

from clusterrun.policy.outcome import Outcome, Suspended
from clusterrun.run.node import Node


def requeue(node: Node, outcome: Outcome) -> str:
    """Ask the scheduler to start the job again, if it is suspended and that is wanted.

    For node 0, when all else is done: a scheduler ends the job at once.

    Returns:
        What it has answered, as the last line for people; "" if nothing was asked.

    """
    scheduler, is_suspended = node.job.scheduler, isinstance(outcome.reason, Suspended)
    # Without such a command the exit code is enough.
    if not (node.job.suspending.requeue and is_suspended and scheduler and scheduler.requeue):
        return ""
    from clusterrun.job.this_process import ask

    command = " ".join(scheduler.requeue[:2])
    # The scheduler ends the job's processes, the command among them, before the command has its
    # answer. A signal that is ignored stays so in a program that is executed (signal(7)).
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer = ask(scheduler.requeue, node.variables)
    if answer.error:
        return (
            f"clusterrun: error: {scheduler} is not put back into the queue:"
            f" {command}: {answer.error}\n"
        )
    return f"clusterrun: {scheduler} is put back into the queue ({command})\n"
