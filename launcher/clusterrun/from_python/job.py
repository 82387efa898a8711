"""A job that was started from Python: its agent, and what it comes to."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from clusterrun import errors
from clusterrun.errors import InternalError, LauncherError, MachineError, NodeLostError
from clusterrun.from_python.agent_process import AgentProcess
from clusterrun.from_python.caller_output import CallerOutput
from clusterrun.from_python.errors import JobInterrupted, WorkerFailed
from clusterrun.from_python.keywords import options_of
from clusterrun.from_python.messages import AgentEnds, JobEnded, NotRun, Reply, Request
from clusterrun.from_python.pickled_call import Call, pickled
from clusterrun.from_python.preloaded import modules_to_preload
from clusterrun.from_python.results import Results
from clusterrun.policy.outcome import (
    Exited,
    Fate,
    Interrupted,
    Killed,
    NodeLost,
    NotSuspended,
    OutputGone,
    Succeeded,
    Suspended,
)
from clusterrun.policy.outcome import WorkerFailed as FailedWorker


class Job:
    """A call that runs on every rank of this node; ``close`` ends it if it still runs."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._ended: JobEnded | None = None
        self._not_run: NotRun | None = None
        self._results: Results | None = None
        self._unprinted = ""

    @classmethod
    def start(
        cls,
        call: Call,
        options: Mapping[str, object],
        *,
        called: str,
        environ: Mapping[str, str] = os.environ,
        warm_socket: Path | None = None,
    ) -> Self:
        """Start the agent, and send it the call.

        Args:
            call: what each rank calls.
            options: the job's, by name.
            called: the public function that has been called, for messages.
            environ: the environment of the job.
            warm_socket: of the fork server that stays after the job; None: by ``--keep-warm``.

        Raises:
            UsageError: a part of the call can't be pickled.
            TypeError: an option is unknown.

        """
        found = modules_to_preload(options, environ, stays=warm_socket is not None)
        layer = options_of(called, {**found, **options})
        asked = {
            name: tuple((text.value, text.origin) for text in texts)
            for name, texts in layer.items()
        }
        request = Request(asked, call.name, pickled(call), str(warm_socket or ""))
        job = cls(AgentProcess.start(environ, CallerOutput()))
        try:
            job._agent.send(request)
        except BaseException:
            job.close()
            raise
        return job

    def wait(self, seconds: float | None = None) -> bool:
        """Print what the job prints until it has ended; return whether it has.

        Args:
            seconds: the longest wait; None: no limit.

        """
        return self._agent.follow(self._note, seconds)

    def interrupt(self) -> None:
        """End the job in order, if it still runs."""
        self._agent.interrupt()

    def close(self) -> None:
        self._agent.close()
        if self._results is not None:
            self._results.close()

    def results(self) -> list[Any]:
        """Return the results of this node's ranks, by rank, once the job has ended.

        Raises:
            as ``launch``.

        """
        if self._agent.interrupts:
            raise KeyboardInterrupt
        if self._not_run is not None:
            raise _launcher_error(self._not_run)
        if self._ended is None or self._results is None:
            raise _ended_early(self._agent.exit_code)
        if not isinstance(self._ended.outcome.reason, Succeeded):
            self._raise_failure(self._ended, self._results)
        if self._agent.exit_code != errors.ExitCode.SUCCESS:
            raise MachineError(self._unprinted)
        fates = self._ended.outcome.fates
        for fate in fates:
            if fate.rank not in self._results:
                raise _failed(f"rank {fate.rank} exited with code 0 inside the function", fate)
        return [self._results.returned(fate.rank) for fate in fates]

    def _note(self, reply: Reply) -> None:
        match reply:
            case JobEnded(outcome, _, folder):
                self._ended = reply
                # Opened before the agent goes on, and removes the folder.
                self._results = Results(Path(folder), (fate.rank for fate in outcome.fates))
                self._agent.answer()
            case AgentEnds(_, text):
                self._unprinted = text
            case NotRun():
                self._not_run = reply

    def _raise_failure(self, ended: JobEnded, results: Results) -> NoReturn:
        match ended.outcome.reason:
            case FailedWorker(cause):
                raise _failed(ended.report, cause) from results.raised(cause.rank)
            case Interrupted(number):
                raise JobInterrupted(ended.report, number)
            case OutputGone():
                raise JobInterrupted(ended.report, signal.SIGPIPE)
            case Suspended() | NotSuspended():
                # As the caller sees it, something from outside has stopped the call.
                raise JobInterrupted(ended.report, signal.SIGTERM)
            case NodeLost():
                raise NodeLostError(ended.report)
            case _:
                raise InternalError(ended.report)


def _failed(report: str, fate: Fate) -> WorkerFailed:
    ending = fate.ending
    return WorkerFailed(
        report,
        rank=fate.rank,
        host=fate.host,
        exit_code=ending.code if isinstance(ending, Exited) else None,
        signal=ending.number if isinstance(ending, Killed) else None,
    )


def _launcher_error(reply: NotRun) -> LauncherError:
    found: type[LauncherError] = getattr(errors, reply.kind, InternalError)
    return found(reply.message, reply.hint)


def _ended_early(exit_code: int) -> Exception:
    """Return what it means that an agent has ended without a message."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number > 0:
        name = signal.Signals(number).name
        return JobInterrupted(f"clusterrun: {name} ended the agent of the job", number)
    return InternalError(f"the agent of the job exited with code {exit_code}; its error is above")
