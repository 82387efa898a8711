"""An agent that a client has called over ssh: ``python -P -u -m clusterrun.cli.called``.

It is the agent of any job. Its command line, its signals and its report are messages
(``network.caller``); its standard input, on which they come, is its lifeline, too.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from clusterrun.cli.entry import prepare_process
from clusterrun.errors import ExitCode, LauncherError, UsageError

if TYPE_CHECKING:
    from clusterrun.job.resolve import Resolved
    from clusterrun.network.caller import Call, CallerChannel, FromCaller, Refused
    from clusterrun.run.launch import Caller
    from clusterrun.workers.relay.routes import ToCaller

SECONDS_TO_CALL = 60.0
"""How long a caller may take until it has sent its call."""

SECONDS_TO_SEND = 5.0
"""How long the last message may take."""

BEATS_IN_SILENCE = 4
"""Signs of life in the time after which a process without any is gone."""


def main() -> NoReturn:
    """Run the job that the client describes; exit with the job's exit code."""
    prepare_process()
    from clusterrun.network.caller import FROM_CALLER, Call, CallerChannel, frame, own_version
    from clusterrun.network.handshake import BadFrame

    channel = CallerChannel(FROM_CALLER, os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Nothing else is printed between the messages.
    os.dup2(2, 1)
    _import_what_a_job_needs()
    try:
        call = channel.next(Call, SECONDS_TO_CALL)
    except BadFrame:
        # The channel has ended with it.
        call, error = None, _other_version(own_version())
        os.write(channel.writing, frame(_refusal(error)))
        code: int = error.exit_code
    else:
        code = ExitCode.SUCCESS if call is None else _serve(call, channel)
    channel.drain(SECONDS_TO_SEND)
    # All is written. Python's own exit takes 15 ms.
    os._exit(code)


def _import_what_a_job_needs() -> None:
    """Import it while the caller still prepares its call."""
    import clusterrun.job.resolve
    import clusterrun.run.fork_server_start
    import clusterrun.run.launch
    import clusterrun.run.lifeline  # noqa: F401 - all are


def _serve(call: "Call", channel: "CallerChannel[FromCaller]") -> int:
    """Run the job of a call, and report its end; return the exit code."""
    from clusterrun.run.launch import Caller
    from clusterrun.run.lifeline import Lifeline

    caller = Caller(Lifeline(channel, call.silence), _place_of(call, channel))
    try:
        return _run(call, channel, caller)
    except LauncherError as error:
        if caller.may_write:
            channel.send(_refusal(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort, as for a command line
        from clusterrun.cli.main import explain_unexpected

        return explain_unexpected(error)


def _run(call: "Call", channel: "CallerChannel[FromCaller]", caller: "Caller") -> int:
    from clusterrun.bounds import as_text
    from clusterrun.network.caller import Ended, Notice, Ready
    from clusterrun.policy.fates import bounded_report
    from clusterrun.run.fork_server_start import start_fork_server
    from clusterrun.run.launch import launch

    resolved = _resolved(call)
    channel.send(Ready())
    _await_start(call, channel)
    for warning in resolved.warnings:
        channel.send(Notice(as_text(f"clusterrun: {warning}")))
    # The relay writes there soon.
    channel.drain(SECONDS_TO_SEND)
    fork_server = start_fork_server(resolved, os.environ)
    ended = launch(resolved, os.environ, fork_server, caller)
    if caller.may_write:
        channel.send(Ended(ended.code, bounded_report(ended.report), as_text(ended.unprinted)))
    return ended.code


def _resolved(call: "Call") -> "Resolved":
    """Take over the caller's folder and variables; return the job."""
    from clusterrun.cli.splitting import split
    from clusterrun.job.resolve import resolve
    from clusterrun.job.this_process import this_process
    from clusterrun.network.caller import own_version

    if call.version and call.version != (own := own_version()):
        raise _other_version(own, call.version)
    try:
        os.chdir(call.folder or b".")
    except OSError as error:
        user = os.environ.get("USER") or f"user {os.getuid()}"
        raise UsageError(
            f"{user} can't enter {os.fsdecode(call.folder)}: {error.strerror}",
            "start the job in a folder that all hosts have, with the same path",
        ) from None
    os.environb.update(call.variables)
    time.tzset()
    line = split(tuple(map(os.fsdecode, call.argv)), "clusterrun")
    return resolve(line, os.environ, this_process("clusterrun", is_merged=True))


def _await_start(call: "Call", channel: "CallerChannel[FromCaller]") -> None:
    """Wait until the other hosts are ready, too; exit if the caller is gone or silent before that."""
    from clusterrun.network.caller import Beat, Start

    pause = call.silence / BEATS_IN_SILENCE if call.silence else SECONDS_TO_CALL
    while channel.next(Start, pause) is None:
        is_silent = call.silence and time.monotonic() - channel.heard_at > call.silence
        if channel.end is not None or is_silent:
            os._exit(ExitCode.SUCCESS)
        channel.send(Beat())


def _place_of(call: "Call", channel: "CallerChannel[FromCaller]") -> "ToCaller":
    from clusterrun.loop import NEVER
    from clusterrun.network.caller import Beat, Notice, Output, frame
    from clusterrun.workers.relay.routes import ToCaller

    return ToCaller(
        channel.writing,
        output=lambda stream, lines: frame(Output(stream, lines)),
        notice=lambda text: frame(Notice(text)),
        beat=lambda: frame(Beat()),
        beat_seconds=call.silence / BEATS_IN_SILENCE if call.silence else NEVER,
    )


def _refusal(error: LauncherError) -> "Refused":
    from clusterrun.bounds import as_text
    from clusterrun.network.caller import Refused

    return Refused(type(error).__name__, as_text(error.message), as_text(error.hint))


def _other_version(here: str, there: str = "") -> UsageError:
    if not there:
        return UsageError(f"another version of clusterrun, {here}, is installed here")
    return UsageError(
        f"clusterrun is {here} here, and {there} where it was typed",
        "install the same version on all hosts",
    )


if __name__ == "__main__":
    # Over ssh, what a login shell's files and the interpreter's own may have printed ends here.
    os.write(1, f"{sys.argv[1]}\n".encode())
    main()
