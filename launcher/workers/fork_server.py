"""The fork server: starts, reaps and ends the workers of one node.

The agent executes this file as ``PYTHON -u fork_server.py`` in the job's environment, with one end
of a socketpair as descriptor 3; with ``--contain`` it is PID 1 of a namespace of its own. It stands alone: standard library only, Python 3.8 or newer,
nothing of the launcher imported, so that workers get the job's interpreter and nothing of ours.

Messages are JSON behind a 4-byte big-endian length, descriptors ride on a frame's first byte
(``launcher.workers.channel`` is the other end).

    agent to server                               server to agent
    spawn    local_rank argv env cpus mask        started   local_rank pid remark
             startup foreground, 3 descriptors    failed    local_rank step error pid
    signal   local_ranks number group             exited    local_rank code, or signal
    forward  number                               stopped   local_rank number
    sweep                                         deaf      number local_ranks
                                                  swept     survivors
                                                  uncontained  error

When the socket closes, because the agent ended or was killed, the server kills every group that it
made and everything that re-parented to it, and exits.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Imports leave no garbage, and looking for it all the while takes a tenth of their time.
    gc.disable()

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

# Not typing's: importing that would cost every start some milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

AGENT_FD = 3
MESSAGE_LENGTH = struct.Struct(">I")

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# linux/sched.h and linux/mount.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

# A process that SIGKILL has not ended after this long is in the kernel's hands (state D).
SWEEP_SECONDS = 5.0
NEVER = float("inf")

# Sent to a whole step or container by schedulers; they are for the agent, which tells us.
SHIELDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXCPU,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def main() -> None:
    """Serve the agent until it closes its end, then leave nothing behind."""
    gc.freeze()
    gc.enable()
    close_inherited_descriptors()
    agent = socket.socket(fileno=AGENT_FD)
    # A worker's daemon that held it would hide our end from the agent.
    agent.set_inheritable(False)
    # The pids that the agent and its user know are those of this /proc, whatever is mounted later.
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if "--contain" in sys.argv[1:]:
        try:
            enter_pid_namespace()
        except OSError as error:
            send(agent, "uncontained", error=error.strerror)
            return
    server = ForkServer(agent, host_proc)
    server.serve()
    server.sweep_until_done()
    # Left to its own end it would be complained of under PYTHONDEVMODE.
    agent.close()


class ForkServer:
    """The workers of one node: a process and a group each, by local rank."""

    def __init__(self, agent: socket.socket, host_proc: int) -> None:
        """Become a subreaper, deaf to what is meant for the agent.

        Args:
            agent: the socket to the agent.
            host_proc: the folder /proc as the agent sees it, open.

        """
        self.agent = agent
        self.host_proc = host_proc
        self.pid = os.getpid()
        self.libc = load_libc()
        self.workers: dict[int, int] = {}
        self.whole_groups: set[int] = set()
        self.starting: dict[int, StartingWorker] = {}
        self.buffer = b""
        self.descriptors: list[int] = []
        self.sweep_deadline = NEVER
        self.poll = select.poll()
        self.ignored = {n for n in SHIELDED if signal.getsignal(n) == signal.SIG_IGN}
        for number in SHIELDED:
            signal.signal(number, signal.SIG_IGN)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wakeup, child_ended = os.pipe()
        for end in (self.wakeup, child_ended):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # The agent blocked all signals over our exec, so that none met us unshielded.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(self.agent, select.POLLIN)

    def serve(self) -> None:
        """Answer the agent's messages and watch the workers until the agent's end closes."""
        while True:
            for descriptor, _event in self.poll.poll(self.milliseconds_left()):
                if descriptor == self.wakeup:
                    self.drain_wakeup()
                elif descriptor in self.starting:
                    self.settle_start(descriptor)
                elif not self.hear_agent():
                    return
            self.reap()

    def milliseconds_left(self) -> float | None:
        """Return how long to wait: for ever, or until a sweep must be called off."""
        if self.sweep_deadline == NEVER:
            return None
        # Looks again now and then: the kernel's list of children may miss one that is moving.
        return min(0.2, max(0.0, self.sweep_deadline - time.monotonic())) * 1000

    def drain_wakeup(self) -> None:
        """Forget the bytes that signal handlers wrote; ``reap`` looks for itself."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass

    def hear_agent(self) -> bool:
        """Perform what the agent has sent; return False once it is gone."""
        try:
            chunk, ancillary, _flags, _address = self.agent.recvmsg(
                1 << 16, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return False
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                usable = len(data) - len(data) % array.array("i").itemsize
                self.descriptors.extend(array.array("i", data[:usable]))
        self.buffer += chunk
        for message in self.complete_messages():
            self.perform(message)
        return bool(chunk)

    def complete_messages(self) -> Iterator[dict[str, Any]]:
        """Yield every message whose last byte has arrived."""
        while len(self.buffer) >= MESSAGE_LENGTH.size:
            (size,) = MESSAGE_LENGTH.unpack_from(self.buffer)
            end = MESSAGE_LENGTH.size + size
            if len(self.buffer) < end:
                return
            frame, self.buffer = self.buffer[MESSAGE_LENGTH.size : end], self.buffer[end:]
            yield json.loads(frame)

    def perform(self, message: dict[str, Any]) -> None:
        """Do what one message of the agent asks."""
        kind = message.pop("kind")
        if kind == "spawn":
            streams = [self.descriptors.pop(0) for _ in range(message["descriptors"])]
            self.spawn(message, streams)
        elif kind == "signal":
            self.signal_workers(**message)
        elif kind == "forward":
            self.forward(**message)
        elif kind == "sweep":
            self.sweep_deadline = time.monotonic() + SWEEP_SECONDS
            self.kill_everything()

    def tell(self, kind: str, **message: object) -> None:
        """Send one message to the agent."""
        send(self.agent, kind, **message)

    def spawn(self, request: dict[str, Any], streams: list[int]) -> None:
        """Start one worker; ``settle_start`` tells the agent how far it came."""
        local_rank = request["local_rank"]
        try:
            if is_to_be_bound(request["cpus"]):
                import_psutil()
            pid, status = self.fork(request, streams)
        except OSError as error:  # too many processes or open files, as a rule
            self.tell("failed", local_rank=local_rank, step="fork", error=error.strerror)
            return
        finally:
            for descriptor in streams:
                os.close(descriptor)
        self.workers[local_rank] = pid
        if request["startup"] is None:
            self.whole_groups.add(local_rank)
        self.starting[status] = StartingWorker(local_rank, pid)
        self.poll.register(status, select.POLLIN)

    def fork(self, request: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """Fork the process of a worker; return its pid, and the pipe that tells how far it came."""
        status, child_status = os.pipe()
        # Blocked, a signal that meets the child before its dispositions are set is not lost.
        mine = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                become_worker(self, request, streams, child_status)
        except OSError:
            os.close(status)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mine)
            os.close(child_status)
        return pid, status

    def settle_start(self, status: int) -> None:
        """Read what a starting worker says; the pipe's end of file means that it has executed."""
        chunk = os.read(status, 1 << 16)
        worker = self.starting[status]
        if chunk:
            worker.said += chunk
            return
        self.poll.unregister(status)
        os.close(status)
        del self.starting[status]
        said = dict(json.loads(line) for line in worker.said.splitlines())
        if "step" in said:
            self.workers.pop(worker.local_rank, None)
            self.tell("failed", local_rank=worker.local_rank, **said)
        else:
            self.tell("started", local_rank=worker.local_rank, **{"pid": worker.pid, **said})

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

    def bury(self, dead: os.waitid_result) -> None:
        """Kill the group of ``dead`` if it is a worker, reap it, and tell the agent."""
        # A start that is over must be reported before its end.
        for status in [s for s, worker in self.starting.items() if worker.pid == dead.si_pid]:
            while status in self.starting:
                self.settle_start(status)
        local_rank = next((r for r, pid in self.workers.items() if pid == dead.si_pid), None)
        if local_rank is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(dead.si_pid, signal.SIGKILL)
        os.waitid(os.P_PID, dead.si_pid, os.WEXITED)
        if local_rank is not None:
            del self.workers[local_rank]
            how = "code" if dead.si_code == os.CLD_EXITED else "signal"
            self.tell("exited", local_rank=local_rank, **{how: dead.si_status})

    def report_stops(self) -> None:
        """Tell the agent of workers that a terminal's Ctrl-Z (or anyone's SIGSTOP) has stopped."""
        for local_rank, pid in self.executed().items():
            # A worker that has ended can't be asked this; it is buried next.
            with contextlib.suppress(ChildProcessError):
                stopped = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
                if stopped is not None:
                    self.tell("stopped", local_rank=local_rank, number=stopped.si_status)

    def signal_workers(self, local_ranks: list[int], number: int, group: bool) -> None:  # noqa: FBT001 - a field of the message
        """Send signal ``number`` to workers that have not been reaped, or to their groups."""
        for local_rank in local_ranks:
            pid = self.workers.get(local_rank)
            if pid is not None:
                with contextlib.suppress(PermissionError):
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
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(member, number)
            if not hearing:
                deaf.append(local_rank)
        self.tell("deaf", number=number, local_ranks=deaf)

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
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.kill_children()

    def kill_children(self) -> None:
        """SIGKILL every child, adopted ones included."""
        for pid in children_of(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def continue_sweep(self, childless: bool) -> None:  # noqa: FBT001 - what waitid has just said
        """Kill what has re-parented to us since; report once nothing is left, or can't be ended."""
        if childless:
            self.sweep_deadline = NEVER
            self.tell("swept", survivors=[])
        elif time.monotonic() < self.sweep_deadline:
            self.kill_everything()
        else:
            self.sweep_deadline = NEVER
            self.tell("swept", survivors=[describe(pid) for pid in children_of(self.pid)])

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


def send(agent: socket.socket, kind: str, **message: object) -> None:
    """Send one message to the agent; if it is gone, its end of the socket will tell."""
    frame = json.dumps(dict(message, kind=kind)).encode()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        agent.sendall(MESSAGE_LENGTH.pack(len(frame)) + frame)


def send_signal(pid: int, number: int, group: bool) -> None:  # noqa: FBT001 - a field of the message
    """Signal a worker that has not been reaped; or its group, which it may be about to form."""
    if group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
            return
    os.kill(pid, number)


class StartingWorker:
    """A worker between fork and exec, and what it has said of that on its way."""

    def __init__(self, local_rank: int, pid: int) -> None:
        """Take the worker's local rank and process id."""
        self.local_rank = local_rank
        self.pid = pid
        self.said = b""


def become_worker(
    server: ForkServer, request: dict[str, Any], streams: list[int], status: int
) -> None:
    """In the child: take every step of a worker's start by name, and execute its program.

    Writes ``["step", NAME]`` and ``["error", TEXT]`` to ``status`` for a step that fails, and
    ``["remark", TEXT]`` on the binding: one that did not work is no reason not to train.
    """
    step = "signals"
    try:
        signal.set_wakeup_fd(-1)
        step = "session"
        enter_session(request["foreground"], streams[0])
        restore_signals(server.ignored)
        step = "die with the fork server"
        die_with_parent(server)
        step = "binding"
        say(status, "pid", int(os.readlink("self", dir_fd=server.host_proc)))
        say(status, "remark", bind(request["cpus"]))
        step = "output"
        status = take_streams(streams, status)
        step = "execute " + request["argv"][0]
        variables = worker_variables(request)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
        os.execvpe(request["argv"][0], request["argv"], variables)
    except Exception as error:  # noqa: BLE001 - whatever it is, the child must not become a server
        say(status, "step", step)
        say(status, "error", getattr(error, "strerror", None) or str(error))
    finally:
        os._exit(127)


def say(status: int, key: str, value: str | int) -> None:
    """Write one line about this start to the fork server."""
    os.write(status, json.dumps([key, value]).encode() + b"\n")


def enter_session(foreground: bool, terminal: int) -> None:  # noqa: FBT001 - a field of the message
    """Lead a group of our own: in the terminal's session as its foreground, or in a new one."""
    if not foreground:
        os.setsid()
        return
    os.setpgid(0, 0)
    # SIGTTOU is still ignored here, or this call would stop us.
    os.tcsetpgrp(terminal, os.getpid())


def restore_signals(ignored: set[signal.Signals]) -> None:
    """Give the program the dispositions that the launcher was started with.

    SIGPIPE and SIGXFSZ are ignored by Python itself, not by the user.
    """
    for number in (*SHIELDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def die_with_parent(server: ForkServer) -> None:
    """Have the kernel kill us when the fork server ends; it may have ended already."""
    server.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server.pid:
        os._exit(127)


def bind(cpus: list[int] | None) -> str:
    """Bind to ``cpus`` and read back what the kernel made of it; return a remark or ""."""
    if cpus is None or not is_to_be_bound(cpus):
        return ""
    psutil = import_psutil()
    try:
        if psutil is not None:
            psutil.Process().cpu_affinity(cpus)
        else:
            os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        return "not bound to CPUs {}: {}".format(cpus, getattr(error, "strerror", None) or error)
    bound = sorted(os.sched_getaffinity(0))
    return "" if bound == sorted(cpus) else f"asked for CPUs {cpus}, got {bound}"


def is_to_be_bound(cpus: list[int] | None) -> bool:
    """Tell whether ``cpus`` are others than those that we may use already."""
    return cpus is not None and set(cpus) != os.sched_getaffinity(0)


def import_psutil() -> Any:  # noqa: ANN401 - a module or None
    """Return psutil, or None where the job's interpreter has none."""
    try:
        import psutil  # noqa: PLC0415 - only where somebody is to be bound
    except ImportError:
        return None
    return psutil


def take_streams(streams: list[int], status: int) -> int:
    """Make ``streams`` descriptors 0, 1 and 2; return ``status``, moved out of their way."""
    import fcntl  # noqa: PLC0415 - not needed by the server

    status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, 10)
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in streams]
    for target, descriptor in enumerate(high):
        os.dup2(descriptor, target)
    return status


def worker_variables(request: dict[str, Any]) -> dict[str, str]:
    """Return the job's environment, which is ours, with what this worker gets on top."""
    variables = dict(os.environ)
    variables.update(request["env"])
    if request["startup"] is not None:
        # Python takes an empty one for none; together with ours it would mean this folder.
        users_own = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
        variables["PYTHONPATH"] = os.pathsep.join([request["startup"], *users_own])
    return variables


def survives(pid: int, number: int) -> bool:
    """Tell whether ``pid`` catches or ignores signal ``number`` (SigCgt, SigIgn: proc(5)).

    SIGQUIT must be caught: ignoring it prints no stacks.
    """
    keys = ("SigCgt:",) if number == signal.SIGQUIT else ("SigCgt:", "SigIgn:")
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = [line.split() for line in status]
    except OSError:
        return False
    return any(int(line[1], 16) >> (number - 1) & 1 for line in lines if line[0] in keys)


def children_of(pid: int) -> list[int]:
    """Return the living processes whose parent is ``pid``."""
    return [child for child in every_child_of(pid) if state_and_parent(child)[0] not in "ZX"]


def every_child_of(pid: int) -> list[int]:
    """Return the processes whose parent is ``pid``, those included that wait to be reaped."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            candidates = [int(number) for number in children.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [child for child in candidates if state_and_parent(child)[1] == pid]


def group_of(leader: int) -> list[int]:
    """Return the processes of the group that ``leader`` leads, itself first."""
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != leader]
    return [leader, *(pid for pid in others if stat_fields(pid)[2] == str(leader))]


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return a process's state letter and parent; ("X", 0) if it is gone."""
    state, parent, _group = stat_fields(pid)
    return state, int(parent)


def stat_fields(pid: int) -> tuple[str, str, str]:
    """Return a process's state, parent and group (proc(5)); ("X", "0", "0") if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # The name in parentheses may hold spaces and parentheses of its own.
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return "X", "0", "0"
    return fields[0], fields[1], fields[2]


def describe(pid: int) -> str:
    """Return "pid 12 (python, state D in nfs_wait)" for a process that won't die."""

    def read(name: str) -> str:
        try:
            with open(f"/proc/{pid}/{name}") as file:
                return file.read().strip()
        except OSError:
            return "?"

    state, _parent = state_and_parent(pid)
    return "pid {} ({}, state {} in {})".format(pid, read("comm"), state, read("wchan"))


def enter_pid_namespace() -> None:
    """Become PID 1 of a PID namespace: when we end, the kernel ends all that is in it, at once.

    Returns in the child only. The parent, whom the agent started, waits for it and ends as it does.
    As root the namespace is all that changes; others need a user namespace of their own, too.

    Raises:
        OSError: the kernel does not allow it here.

    """
    libc = load_libc()
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWPID | CLONE_NEWNS) != 0:
        checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS))
        write_file("/proc/self/setgroups", "deny")
        write_file("/proc/self/uid_map", f"{user} {user} 1")
        write_file("/proc/self/gid_map", f"{group} {group} 1")
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        os.close(AGENT_FD)
        end_like(os.waitpid(pid, 0)[1])
    # The agent knows, and users kill, the parent; it may have ended already. getppid says 0 here.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if state_and_parent(int(os.readlink("/proc/self")))[1] != parent:
        os._exit(127)
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    checked(libc.mount(b"proc", b"/proc", b"proc", 0, None))


def load_libc() -> Any:  # noqa: ANN401 - its attributes are C's functions
    """Return the C library of this process."""
    # Here, because the agent imports this file too, and can do so without ctypes until later.
    import ctypes  # noqa: PLC0415 - see above

    return ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    """Raise the OSError of a C function that has returned -1."""
    if result != 0:
        import ctypes  # noqa: PLC0415 - imported before, by load_libc

        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def end_like(status: int) -> None:
    """End this process as another one ended, by its ``wait`` status."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def write_file(path: str, text: str) -> None:
    """Write ``text`` to a file of the kernel's."""
    with open(path, "w") as file:
        file.write(text)


def close_inherited_descriptors() -> None:
    """Close what the launcher's own parent left open: workers get descriptors 0, 1 and 2 only."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > AGENT_FD:
            with contextlib.suppress(OSError):
                os.close(int(name))


if __name__ == "__main__":
    main()
    # The agent waits for our end, and Python would spend 7 ms on taking itself apart.
    os._exit(0)
