"""What people read while a job runs, to the letter: each is one line, and says what comes of it."""

import signal

OUTPUT_CLOSED = "standard output is closed: stopping all workers"
STACKS_OF_ALL = "SIGQUIT: the Python stacks of all ranks follow on node 0; nothing is ended"
LOST_BY_OTHERS = "the other nodes have lost this one"
INTERRUPTED = "interrupted: exit code 130"

BY_SIGNAL = {
    signal.SIGINT: ("interrupted", "Ctrl-C", 130),
    signal.SIGTERM: ("SIGTERM", "SIGTERM", 143),
    signal.SIGHUP: ("SIGHUP", "SIGHUP", 129),
}
"""What happened, how it happens again, and the exit code."""


def counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def stopping(number: int, workers: int, grace: float, *, to_fork_server: bool = False) -> str:
    what, again, code = BY_SIGNAL[signal.Signals(number)]
    if to_fork_server:
        what = f"{signal.Signals(number).name} to the workers' parent process"
    how = f"(grace {grace:g} s, {again} again kills at once)"
    return f"{what}: stopping {counted(workers)} {how}; exit code {code}"


def stopping_by(command: str, workers: int, grace: float) -> str:
    how = f"(grace {grace:g} s, {command} --now kills at once)"
    return f"{command}: stopping {counted(workers)} {how}; exit code 143"


def killing_now(command: str, workers: int) -> str:
    return f"{command} --now: killing {counted(workers)}; exit code 143"


def killing_instead(number: int, workers: int) -> str:
    what, _, code = BY_SIGNAL[signal.Signals(number)]
    return f"{what} again: killing {counted(workers)}; exit code {code}"


def killing(workers: int, grace: float) -> str:
    return f"{counted(workers)} did not exit within {grace:g} s: sending SIGKILL"


def stopping_here(why: str, workers: int) -> str:
    return f"{why}: stopping {counted(workers)} here"


def killing_at_once(why: str, workers: int) -> str:
    return f"{why}: killing {counted(workers)} here"


def no_restart(number: int) -> str:
    what, _, code = BY_SIGNAL[signal.Signals(number)]
    return f"{what}: no restart; exit code {code}"


def stopping_others(number: int) -> str:
    what, again, code = BY_SIGNAL[signal.Signals(number)]
    how = f"({again} again does not wait for them)"
    return f"{what}: the other nodes stop their workers {how}; exit code {code}"


def not_handled(name: str, local_ranks: str) -> str:
    why = "it has no handler and would have been killed"
    return f"{name} was not passed on to local rank {local_ranks}: {why}"


def binding_differs(local_rank: int, remark: str) -> str:
    return f"local rank {local_rank}: {remark}"


def stacks_follow(workers: int) -> str:
    return f"SIGQUIT: the Python stacks of {counted(workers)} follow; nothing is ended"
