"""The agent of a job that was started from Python, as a process of its own.

Executed by ``agent_process`` as ``python -P agent.py CALLER_PID BLOCKS_SIGINT``, with the socket to
the caller as standard input. It kills itself when the caller dies; its fork server and its relay then
end the job, as they do whenever an agent dies.
"""

import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterrun.from_python.messages import Request
    from clusterrun.policy.outcome import Report
    from clusterrun.workers.scratch import Scratch

PARENT_ENDED = signal.SIGURG
"""By default it does nothing, and no program sends it to another."""

RANK_PROGRAM = Path(__file__).with_name("rank_program.py")


def main() -> int:
    """Run the job that the caller sends; return the exit code."""
    _find_clusterrun()
    from clusterrun.cli.entry import prepare_process

    _end_with(int(sys.argv[1]))
    control = _control()
    prepare_process()
    if sys.argv[2] == "0":
        # Blocked until now, when it has a handler.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from clusterrun.errors import LauncherError
    from clusterrun.from_python.messages import AgentEnds, NotRun, receive_request, send_reply

    try:
        code, unprinted = _run(receive_request(control), control)
    except LauncherError as error:
        send_reply(control, NotRun(type(error).__name__, error.message, error.hint))
        return error.exit_code
    send_reply(control, AgentEnds(code, unprinted))
    return code


def _find_clusterrun() -> None:
    """Let clusterrun be imported from where this file is: the caller may have added that folder."""
    place = str(Path(__file__).parents[2])
    if place not in sys.path:
        sys.path.insert(0, place)


def _end_with(caller: int) -> None:
    """Have this process killed when the caller ends, however busy it is.

    The kernel's signal comes at the end of each thread of the caller whose child this process is: of
    the one that has started it, and then of another, until none is left.
    """
    from clusterrun.workers.fork_server.this_process import PR_SET_PDEATHSIG, prctl

    def end_if_it_has_ended(*_: object) -> None:
        if os.getppid() != caller:
            os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(PARENT_ENDED, end_if_it_has_ended)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {PARENT_ENDED})
    prctl(PR_SET_PDEATHSIG, PARENT_ENDED)
    # It may have been too early for the signal.
    end_if_it_has_ended()


def _control() -> socket.socket:
    """Return the socket to the caller, and make /dev/null the standard input."""
    control = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    return control


def _run(request: "Request", control: socket.socket) -> tuple[int, str]:
    from clusterrun.cli.printing import warn
    from clusterrun.domain.facts import Fact
    from clusterrun.errors import LauncherError, UsageError
    from clusterrun.job.resolve import resolve
    from clusterrun.job.sources import CommandLine
    from clusterrun.job.this_process import this_process
    from clusterrun.run.fork_server_start import start_fork_server
    from clusterrun.run.launch import Caller, launch
    from clusterrun.workers.scratch import Scratch, own_folder

    scratch = Scratch(own_folder(os.environ))
    options = {
        name: tuple(Fact(text, origin) for text, origin in texts)
        for name, texts in request.options.items()
    }
    line = CommandLine(options, (str(RANK_PROGRAM), str(scratch.path)))
    resolved = resolve(line, os.environ, this_process("clusterrun"))
    if resolved.over_ssh is not None:
        raise UsageError(
            f"{resolved.over_ssh.launcher.origin}: a function cannot be run on other hosts by ssh",
            "leave it out, or type clusterrun --launcher ssh with a script",
        )
    warn(resolved.warnings)
    caller = Caller(scratch, partial(_hand_over, control, scratch), request.warm_socket)
    try:
        _write_call(request.call, scratch)
        keeps_warm = resolved.job.starting.keep_warm
        fork_server = None if keeps_warm else start_fork_server(resolved, os.environ)
        return launch(resolved, os.environ, fork_server, caller)
    except LauncherError:
        # The relay may not have been started, which removes the folder.
        scratch.remove()
        raise


def _write_call(call: bytes, scratch: "Scratch") -> None:
    from clusterrun.errors import MachineError

    if not scratch.make():
        # Another user may have made it, who could put a function of theirs there.
        raise MachineError(
            f"{scratch.path} can't be made, or is another user's",
            "set TMPDIR to a folder that you may write to",
        )
    try:
        (scratch.path / "call").write_bytes(call)
    except OSError as error:
        raise MachineError(
            f"the function can't be written for the workers: {error}",
            "set TMPDIR to a folder that has room",
        ) from error


def _hand_over(control: socket.socket, scratch: "Scratch", report: "Report") -> None:
    """Tell the caller how the job ended, and wait until it has opened the results."""
    from clusterrun.from_python.messages import JobEnded, send_reply
    from clusterrun.run.final_report import text_of

    ended = JobEnded(report.outcome, text_of(report), str(scratch.path))
    send_reply(control, ended)
    control.recv(1)


if __name__ == "__main__":
    os._exit(main())
