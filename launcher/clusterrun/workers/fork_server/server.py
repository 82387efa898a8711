"""The server itself: hears the agent, forks workers, reaps them, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import select
import sys
import time

from .agent_socket import AgentSocket, Frames
from .preloading.preparation import Preparation
from .scripts.script_ends import ScriptEnds
from .system.fork_limits import why_no_fork
from .system.libc import PR_SET_CHILD_SUBREAPER, prctl, refused_protections
from .system.other_processes import children_of, describe, group_of, survives
from .system.pid_namespace import enter_pid_namespace
from .worker_signals import HANDED_ON, SHIELDED, shield
from .worker_start import become_worker, import_psutil, is_to_be_bound

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Mapping
    from typing import Any

    from .scripts.script_run import ScriptRun
else:
    import _signal as signal

AGENT_FD = 3
STDERR_FD = 4  # the agent's standard error; descriptor 2 is a pipe that tells it of a bad start

# A process that SIGKILL has not ended after this long is in the kernel's hands (state D).
SWEEP_SECONDS = 5.0
NEVER = float("inf")


def main(fresh: Mapping[str, object], found: Collection[str]) -> ScriptRun:
    """Serve the agent until it closes its end, then leave nothing behind, and exit.

    Args:
        fresh: what Python puts into the namespace of a script.
        found: the modules that a script finds imported.

    Returns:
        Only in a forked child that is to run a script in place: what it runs.

    """
    gc.freeze()
    gc.enable()
    close_inherited_descriptors()
    os.dup2(STDERR_FD, 2)
    os.close(STDERR_FD)
    agent = AgentSocket(AGENT_FD)
    refused = refused_protections()
    # The pids that the agent and its user know are those of this /proc, whatever is mounted later.
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if sys.argv[1:2] == ["--contain"]:
        try:
            enter_pid_namespace(AGENT_FD)
        except OSError as error:
            agent.send("uncontained", error=error.strerror)
            os._exit(0)
    agent.send("hello", refused=refused)
    server = ForkServer(agent, host_proc, Preparation(fresh, found))
    run = server.serve()
    if run is not None:
        return run
    server.sweep_until_done()
    # The agent waits for our end, and Python would spend 7 ms on taking itself apart.
    os._exit(0)


class ForkServer:
    """The workers of one node: a process and a group each, by local rank."""

    def __init__(self, agent: AgentSocket, host_proc: int, preparation: Preparation) -> None:
        """Become a subreaper that no signal ends.

        Args:
            agent: the socket to the agent.
            host_proc: the folder /proc as the agent sees it, open.
            preparation: makes ready to run a script in place, if the agent asks for it.

        """
        self.agent = agent
        self.host_proc = host_proc
        self.preparation = preparation
        self.script_ends = ScriptEnds()
        self.workers: dict[int, int] = {}
        self.whole_groups: set[int] = set()
        self.starting: dict[int, StartingWorker] = {}
        self.memory_remarks: set[str] = set()
        self.sweep_deadline = NEVER
        self.ignored = {n for n in SHIELDED if signal.getsignal(n) == signal.SIG_IGN}
        self.signals: list[tuple[int, float]] = []
        shield()
        self.wakeup_pipe: tuple[int, ...] = ()
        self.become_parent()
        # The agent blocked all signals over our exec, so that none met us unshielded.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def become_parent(self) -> None:
        """Make the present process the one that workers are forked from."""
        self.pid = os.getpid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for end in self.wakeup_pipe:
            os.close(end)
        self.wakeup_pipe = self.wakeup, child_ended = os.pipe()
        for end in self.wakeup_pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in HANDED_ON:
            if number not in self.ignored:
                signal.signal(number, self.note_signal)
        self.poll = select.poll()
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(self.agent, select.POLLIN)

    def serve(self) -> ScriptRun | None:
        """Answer the agent's messages and watch the workers until the agent's end closes.

        Returns:
            In a forked child that is to run a script in place, what it runs; else None.

        """
        while True:
            for descriptor, _event in self.poll.poll(self.milliseconds_left()):
                if descriptor == self.wakeup:
                    self.drain_wakeup()
                elif descriptor in self.starting:
                    self.settle_start(descriptor)
                else:
                    messages = self.agent.receive()
                    if messages is None:
                        return None
                    for message in messages:
                        run = self.perform(message)
                        if run is not None:
                            return run
            self.hand_on_signals()
            self.reap()

    def milliseconds_left(self) -> float | None:
        """Return how long to wait: for ever, or until a sweep must be called off."""
        if self.sweep_deadline == NEVER:
            return None
        # Looks again now and then: the kernel's list of children may miss one that is moving.
        return min(0.2, max(0.0, self.sweep_deadline - time.monotonic())) * 1000

    def drain_wakeup(self) -> None:
        """Forget the bytes that signal handlers wrote; ``reap`` looks for itself."""
        try:
            while os.read(self.wakeup, 4096):
                pass
        except BlockingIOError:
            pass

    def note_signal(self, number: int, _frame: object) -> None:
        """Note that a signal has come, and when."""
        self.signals.append((number, time.monotonic()))

    def hand_on_signals(self) -> None:
        """Tell the agent of signals to us: a worker may have sent them to its parent."""
        while self.signals:
            number, at = self.signals.pop(0)
            self.agent.send("signalled", number=number, at=at)

    def perform(self, message: dict[str, Any]) -> ScriptRun | None:
        """Do what one message of the agent asks; return as ``serve`` does."""
        kind = message.pop("kind")
        if kind == "spawn":
            return self.spawn(message)
        if kind == "prepare":
            return self.preparation.perform(message, self)
        if kind == "signal":
            self.signal_workers(**message)
        elif kind == "forward":
            self.forward(**message)
        elif kind == "sweep":
            self.sweep_deadline = time.monotonic() + SWEEP_SECONDS
            self.kill_everything()
        return None

    def spawn(self, request: dict[str, Any]) -> ScriptRun | None:
        """Start one worker; ``settle_start`` tells the agent how far it came."""
        local_rank = request["local_rank"]
        script = self.preparation.script_for(request)
        if script is None and self.preparation.refusal:
            for descriptor in request["descriptors"]:
                os.close(descriptor)
            self.agent.send(
                "failed",
                local_rank=local_rank,
                step="run in place",
                error=self.preparation.refusal,
            )
            return None
        self.script_ends.of(local_rank).clear()
        if is_to_be_bound(request["cpus"]):
            import_psutil()
        # Blocked, a signal that meets the child before its dispositions are set is not lost.
        mine = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pipe: tuple[int, ...] = ()
        pid = -1
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:  # too many processes or open files, as a rule
            self.agent.send("failed", local_rank=local_rank, step="fork", error=why_no_fork(error))
        if pid == 0:
            return become_worker(self, request, pipe[1], script)
        signal.pthread_sigmask(signal.SIG_SETMASK, mine)
        for descriptor in (*request["descriptors"], *(pipe if pid == -1 else pipe[1:])):
            os.close(descriptor)
        if pid == -1:
            return None
        status = pipe[0]
        self.workers[local_rank] = pid
        if request["startup"] is None:
            self.whole_groups.add(local_rank)
        self.starting[status] = StartingWorker(local_rank, pid)
        self.poll.register(status, select.POLLIN)
        return None

    def settle_start(self, status: int) -> None:
        """Read what a starting worker says; the pipe's end of file means that its program runs."""
        chunk = os.read(status, 1 << 16)
        worker = self.starting[status]
        if chunk:
            for said in worker.frames.add(chunk):
                worker.said.update(said)
            return
        self.poll.unregister(status)
        os.close(status)
        del self.starting[status]
        said = worker.said
        if "step" in said:
            self.workers.pop(worker.local_rank, None)
            self.agent.send(
                "failed",
                local_rank=worker.local_rank,
                step=said["step"],
                error=said["error"],
                pid=said.get("pid", worker.pid),
            )
        else:
            self.agent.send(
                "started",
                local_rank=worker.local_rank,
                pid=said.get("pid", worker.pid),
                remark=self.remark_on(worker),
            )

    def remark_on(self, worker: StartingWorker) -> str:
        """Return how a worker that has just started is bound otherwise than asked, or ""."""
        said = worker.said
        remarks = [said.get("remark", "")]
        # What the kernel says of a memory policy it says to all: once is enough.
        of_memory = said.get("memory_remark", "")
        if of_memory not in self.memory_remarks:
            self.memory_remarks.add(of_memory)
            remarks.append(of_memory)
        return "; ".join(filter(None, remarks))

    def reap(self) -> None:
        """Collect the dead: a worker's group dies with it, before its number can be used again."""
        self.report_stops()
        childless = False
        try:
            while True:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if dead is None:
                    break
                self.bury(dead)
        except ChildProcessError:
            childless = True
        if self.sweep_deadline != NEVER:
            self.continue_sweep(childless)

    def status_within(self, pid: int, seconds: float) -> int | None:
        """Reap a child that is about to end; return its ``wait`` status, None if it has not ended."""
        deadline = time.monotonic() + seconds
        woken = select.poll()
        woken.register(self.wakeup, select.POLLIN)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return status if ended else None
            woken.poll(left * 1000)
            self.drain_wakeup()

    def bury(self, dead: os.waitid_result) -> None:
        """Kill the group of ``dead`` if it is a worker, reap it, and tell the agent."""
        # A start that is over must be reported before its end.
        for status in [s for s, worker in self.starting.items() if worker.pid == dead.si_pid]:
            while status in self.starting:
                self.settle_start(status)
        local_rank = next((r for r, pid in self.workers.items() if pid == dead.si_pid), None)
        if local_rank is not None:
            kill_group(dead.si_pid)
        os.waitid(os.P_PID, dead.si_pid, os.WEXITED)
        if local_rank is not None:
            del self.workers[local_rank]
            how = "code" if dead.si_code == os.CLD_EXITED else "signal"
            left = self.script_ends.of(local_rank).read()
            self.agent.send("exited", local_rank=local_rank, left=left, **{how: dead.si_status})

    def report_stops(self) -> None:
        """Tell the agent of workers that a terminal's Ctrl-Z (or anyone's SIGSTOP) has stopped."""
        for local_rank, pid in self.executed().items():
            try:
                stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
            except ChildProcessError:
                # It has ended, and is buried next.
                continue
            if stopped is not None:
                self.agent.send("stopped", local_rank=local_rank, number=stopped.si_status)

    def signal_workers(
        self,
        local_ranks: list[int],
        number: int,
        group: bool,  # noqa: FBT001 - a field of the message
        spare_failing: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> None:
        """Send signal ``number`` to workers that have not been reaped, or to their groups.

        With ``spare_failing`` none is sent to a worker whose script is known to have failed.
        """
        for local_rank in local_ranks:
            pid = self.workers.get(local_rank)
            if pid is None or (spare_failing and self.script_ends.of(local_rank).is_failure):
                continue
            send_signal(pid, number, group)

    def forward(self, number: int) -> None:
        """Send a signal to the workers that have a handler for it or ignore it, name the others.

        A program that isn't Python may be a shell around what is meant: its whole group is asked.
        """
        # A worker on its way to its program still ignores what that one may die of.
        deaf = list(self.workers.keys() - self.executed().keys())
        for local_rank, pid in self.executed().items():
            members = group_of(pid) if local_rank in self.whole_groups else [pid]
            hearing = [member for member in members if survives(member, number)]
            for member in hearing:
                send_signal(member, number, group=False)
            if not hearing:
                deaf.append(local_rank)
        self.agent.send("deaf", number=number, local_ranks=deaf)

    def executed(self) -> dict[int, int]:
        """Return the pids of the workers that are known to have executed their programs."""
        starting = {worker.pid for worker in self.starting.values()}
        return {rank: pid for rank, pid in self.workers.items() if pid not in starting}

    def kill_everything(self) -> None:
        """SIGKILL every worker's group and every child, adopted ones included.

        Only children are signalled: until we reap them, their numbers can't belong to others.
        Their own children re-parent to us when they die, and the next call reaches those.
        """
        for pid in self.workers.values():
            kill_group(pid)
        self.kill_children()

    def kill_children(self) -> None:
        """SIGKILL every child, adopted ones included."""
        for pid in children_of(self.pid):
            send_signal(pid, signal.SIGKILL, group=False)

    def continue_sweep(self, childless: bool) -> None:  # noqa: FBT001 - what waitid has just said
        """Kill what has re-parented to us since; report once nothing is left, or can't be ended."""
        if childless:
            self.sweep_deadline = NEVER
            self.agent.send("swept", survivors=[])
        elif time.monotonic() < self.sweep_deadline:
            self.kill_everything()
        else:
            self.sweep_deadline = NEVER
            self.agent.send("swept", survivors=[describe(pid) for pid in children_of(self.pid)])

    def sweep_until_done(self) -> None:
        """Kill and reap all children, new ones too, for at most ``SWEEP_SECONDS``."""
        deadline = time.monotonic() + SWEEP_SECONDS
        self.kill_everything()
        self.poll.unregister(self.agent)
        for status in self.starting:
            self.poll.unregister(status)
        while time.monotonic() < deadline:
            # All of the dead at once: what must be looked through to find the living is short then.
            try:
                while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                return
            # No groups any more: workers have been reaped, and their numbers may be others' now.
            self.kill_children()
            self.poll.poll(200)
            self.drain_wakeup()


class StartingWorker:
    """A worker between fork and its program, and what it has said of that on its way."""

    def __init__(self, local_rank: int, pid: int) -> None:
        """Take the worker's local rank and process id."""
        self.local_rank = local_rank
        self.pid = pid
        self.frames = Frames()
        self.said: dict[str, Any] = {}


def send_signal(pid: int, number: int, group: bool) -> None:  # noqa: FBT001 - a field of the message
    """Signal a child that has not been reaped; or its group, which it may be about to form."""
    if group:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return
        else:
            return
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(leader: int) -> None:
    """SIGKILL a group, if there is one."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def close_inherited_descriptors() -> None:
    """Close what the launcher's own parent left open: workers get descriptors 0, 1 and 2 only."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > STDERR_FD:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own
