"""The workers of a node: how they are started, signalled and reaped."""

from __future__ import annotations

import _signal as signal
import os
import select

from .agent_socket import Frames
from .binding import import_psutil, must_be_bound
from .failure_notes import FailureNotes
from .other_processes import group_of, kill_group, send_signal, survives, why_no_fork
from .script_run import ScriptEnds
from .worker_start import WorkerStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .forking_process import ForkingProcess
    from .script import Script
    from .script_run import ScriptRun


class Workers:
    """The running workers by local rank: each is a process that leads a group.

    ``host_proc`` is the agent's /proc, open.
    """

    def __init__(self, process: ForkingProcess, host_proc: int) -> None:
        self._process = process
        self._agent = process.agent
        self._host_proc = host_proc
        self._script_ends = ScriptEnds()
        self._pids: dict[int, int] = {}
        self._no_python: set[int] = set()
        self._failing: set[int] = set()
        """Those whose script is known to have failed, which is reported."""
        self._failure_notes: FailureNotes | None = None
        """From workers that have executed Python; None if there are none."""
        self._starting: dict[int, StartingWorker] = {}
        self._memory_remarks: set[str] = set()

    def start(self, request: dict[str, Any], script: Script | None) -> ScriptRun | None:
        """Fork a worker, which runs ``script`` or executes its program.

        Returns:
            In the child, the run of the script; None in the server.

        """
        local_rank = request["local_rank"]
        end = self._script_ends.of(local_rank)
        end.clear()
        self._failing.discard(local_rank)
        if script is None and request["startup_folder"] is not None:
            self._failure_notes = self._failure_notes or FailureNotes()
            request["failure_notes"] = self._failure_notes.name
        if must_be_bound(request["cpus"]):
            import_psutil()
        # A signal that reaches the child before its handlers are set stays pending.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pipe: tuple[int, ...] = ()
        pid = -1
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            why = why_no_fork(error)
            self._agent.send("not_started", local_rank=local_rank, step="fork", error=why)
        if pid == 0:
            return WorkerStart(request, pipe[1], self._process, self._host_proc).run(script, end)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (*request["descriptors"], *(pipe if pid == -1 else pipe[1:])):
            os.close(descriptor)
        if pid != -1:
            self._pids[local_rank] = pid
            if request["startup_folder"] is None:
                self._no_python.add(local_rank)
            self._starting[pipe[0]] = StartingWorker(local_rank, pid)
            self._process.poll.register(pipe[0], select.POLLIN)
        return None

    def read_start(self, status: int) -> None:
        """Read a starting worker's status pipe; its end of file means that the program runs."""
        worker = self._starting.get(status)
        if worker is None:
            # ``forward`` has read it to its end since the poll.
            return
        chunk = os.read(status, 1 << 16)
        if chunk:
            for report in worker.frames.add(chunk):
                worker.report.update(report)
            return
        self._process.poll.unregister(status)
        os.close(status)
        del self._starting[status]
        rank, report = worker.local_rank, worker.report
        if "step" in report:
            self._pids.pop(rank, None)
            step, error = report["step"], report["error"]
            self._agent.send("not_started", local_rank=rank, step=step, error=error)
        else:
            pid = report.get("pid", worker.pid)
            self._agent.send("started", local_rank=rank, pid=pid, remark=self._remark(report))

    def _remark(self, report: dict[str, Any]) -> str:
        """Return how the binding of a started worker differs from the plan, or ""."""
        remarks = [report.get("remark", "")]
        # The kernel refuses a memory policy to all workers alike: one remark is enough.
        memory_remark = report.get("memory_remark", "")
        if memory_remark not in self._memory_remarks:
            self._memory_remarks.add(memory_remark)
            remarks.append(memory_remark)
        return "; ".join(filter(None, remarks))

    def reap(self) -> bool:
        """Reap all children that have ended; return whether no child is left."""
        self._report_stops()
        self._report_failing()
        try:
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return False
                self._reap_child(ended)
        except ChildProcessError:
            return True

    def _reap_child(self, ended: os.waitid_result) -> None:
        """Reap a child; kill its group before that if it is a worker, and report its exit."""
        # A start must be reported before the exit.
        for status in [s for s, worker in self._starting.items() if worker.pid == ended.si_pid]:
            while status in self._starting:
                self.read_start(status)
        local_rank = next((r for r, pid in self._pids.items() if pid == ended.si_pid), None)
        if local_rank is not None:
            # Until the worker is reaped, no other process can have its number.
            kill_group(ended.si_pid)
        os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
        if local_rank is not None:
            del self._pids[local_rank]
            how = "code" if ended.si_code == os.CLD_EXITED else "signal"
            failure = self._script_ends.of(local_rank).read()
            exit_status = {how: ended.si_status}
            self._agent.send("exited", local_rank=local_rank, failure=failure, **exit_status)

    def _report_stops(self) -> None:
        """Report workers that Ctrl-Z on a terminal, or a SIGSTOP of any sender, has stopped."""
        for local_rank, pid in self._running().items():
            try:
                stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
            except ChildProcessError:
                continue  # it has ended, and is reaped next
            if stopped is not None:
                self._agent.send("stopped", local_rank=local_rank, number=stopped.si_status)

    def _report_failing(self) -> None:
        """Report workers whose script has failed: an exit handler or a thread may hold them."""
        notes = self._failure_notes.received() if self._failure_notes is not None else []
        for pid, nanoseconds in notes:
            for local_rank in [rank for rank, its_pid in self._pids.items() if its_pid == pid]:
                self._script_ends.of(local_rank).write(nanoseconds, 1)
        # A start must be reported before.
        for local_rank in self._running().keys() - self._failing:
            end = self._script_ends.of(local_rank)
            if end.is_failure:
                self._failing.add(local_rank)
                self._agent.send("failing", local_rank=local_rank, failure=end.read())

    def signal(
        self,
        local_ranks: list[int],
        number: int,
        group: bool,  # noqa: FBT001 - a field of the message
        except_failing: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> None:
        """Send a signal to workers that have not been reaped, or to their groups.

        With ``except_failing``, workers whose script is known to have failed get none.
        """
        for local_rank in local_ranks:
            pid = self._pids.get(local_rank)
            if pid is None or (except_failing and self._script_ends.of(local_rank).is_failure):
                continue
            send_signal(pid, number, group=group)

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle or ignore it; report the others.

        A program that isn't Python may be a shell that started the real program: every process of
        its group that handles the signal gets it.
        """
        self._read_starts()
        running = self._running()
        # A worker that has not executed its program still ignores what may kill the program.
        not_handled = list(self._pids.keys() - running.keys())
        for local_rank, pid in running.items():
            members = group_of(pid) if local_rank in self._no_python else [pid]
            handling = [member for member in members if survives(member, number)]
            for member in handling:
                send_signal(member, number)
            if not handling:
                not_handled.append(local_rank)
        self._agent.send("not_handled", number=number, local_ranks=not_handled)

    def _read_starts(self) -> None:
        """Read what starting workers have reported by now: a program may have printed already."""
        poll = select.poll()
        for status in self._starting:
            poll.register(status, select.POLLIN)
        while ready := poll.poll(0):
            for status, _ in ready:
                self.read_start(status)
                if status not in self._starting:
                    poll.unregister(status)

    def kill_groups(self) -> None:
        for pid in self._pids.values():
            kill_group(pid)

    def _running(self) -> dict[int, int]:
        """Return the pids of the workers that are known to have executed their programs."""
        starting = {worker.pid for worker in self._starting.values()}
        return {rank: pid for rank, pid in self._pids.items() if pid not in starting}


class StartingWorker:
    """A worker between fork and its program, and what it has reported so far."""

    def __init__(self, local_rank: int, pid: int) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.frames = Frames()
        self.report: dict[str, Any] = {}
