"""The relay's process: detaches from the agent, runs the loop, and removes the scratch folder."""

import gc
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from clusterrun.errors import ExitCode
from clusterrun.processes import TimeLimited, close_all_but, start_thread
from clusterrun.user_sockets import remove_socket
from clusterrun.workers.fork_server.channel import Channel
from clusterrun.workers.relay.routes import Screen
from clusterrun.workers.scratch import SECONDS_TO_ANSWER, remove_leftovers, remove_scratch

_IGNORED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTOU,
    signal.SIGTTIN,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
}
"""The relay lives until the agent closes its socket, whatever ends or stops the other processes."""


def run_relay(control: socket.socket, screen: Screen, scratch: Path | None) -> NoReturn:
    """Run the relay in a process that was just forked with all signals blocked; never returns."""
    _detach_from_agent(keep={control.fileno(), screen.stdout, screen.stderr})
    # In a thread: a large or slow folder must not delay the output.
    sweeper = start_thread(partial(remove_leftovers, scratch.parent)) if scratch else None
    # Imported only now: before, Ctrl-C would reach this process as part of the agent's group.
    from clusterrun.workers.relay.relay_loop import RelayLoop

    gc.enable()
    files = TimeLimited(SECONDS_TO_ANSWER)
    loop = RelayLoop(Channel(control), screen, time.monotonic, files)
    loop.run()
    if sweeper:
        sweeper.join(SECONDS_TO_ANSWER)
    # If two threads hang in one folder, not even SIGKILL ends this process. The next launch removes
    # what is left.
    if scratch and not (sweeper and sweeper.is_alive()):
        files.run(partial(remove_scratch, scratch))
    for path in loop.sockets:
        files.run(partial(remove_socket, path))
    os._exit(ExitCode.SUCCESS)


def _detach_from_agent(keep: set[int]) -> None:
    # The agent's objects are not collected here: their descriptors are closed below.
    gc.freeze()
    _take_signals()
    # Not in the foreground group: Ctrl-C and Ctrl-Z are for the agent.
    os.setpgid(0, 0)
    _take_descriptors(keep)
    with suppress(OSError):
        Path("/proc/self/comm").write_text("clusterrun-relay", encoding="utf-8")


def _take_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_descriptors(keep: set[int]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDWR), 0, inheritable=False)
    close_all_but({0, *keep})
    # Each worker needs four, and the soft limit is often 1024.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
