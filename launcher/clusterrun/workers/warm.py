"""Fork servers that stay warm: found by their sockets, asked to serve a job, ended.

``clusterrun.workers.fork_server.listener`` is the other end.
"""

import hashlib
import os
import resource
import select
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from clusterrun.planning.preparation import Preparation
from clusterrun.user_sockets import connect_to, socket_folder, socket_folders
from clusterrun.workers.fork_server.channel import HelperChannel, Message, frame
from clusterrun.workers.fork_server.kernel import stat_fields
from clusterrun.workers.fork_server_client import ForkServer, preparation_message
from clusterrun.workers.fork_server_process import ServerCommand, ServerProcess

SECONDS_TO_ANSWER = 10.0
"""How long a warm fork server may take to look at the files that it has imported."""

_PREFIX = "warm-"

_STATUS = ("Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_STATUS_OF_THREADS = ("SigIgn", "Cpus_allowed_list", "Mems_allowed_list", "CoreDumping")
"""Lines of /proc/self/status (proc(5))."""

_TERMINAL_FIELD = 7 - 3
"""proc(5) counts from 1, and ``stat_fields`` begins with the third."""

_CHANGES_BY_ITSELF = frozenset({"_", "OLDPWD", "SHLVL"})
"""Variables that a shell sets before each command."""


def warm_or_new(
    command: ServerCommand,
    preparation: Preparation,
    path: Path,
    seconds: float,
    *,
    is_owned: bool,
) -> tuple[ForkServer, str]:
    """Return a warm fork server, or a new one that is to stay; and a remark, or "".

    Args:
        command: how a new one is executed.
        preparation: what it is to prepare.
        path: of its socket.
        seconds: how long it stays without a job.
        is_owned: whether the socket is in a folder of the caller's, who ends the server.

    Raises:
        UsageError: the interpreter can't be executed.
        MachineError: a limit allows no more processes.

    """
    prepare = preparation_message(preparation)
    key = {
        **_inheritance(command.variables, command.python),
        "preparation": repr({**prepare, "command": _program(preparation)}),
        "contain": repr(command.contain),
    }
    remark = ""
    if (channel := connected(path)) is not None:
        channel.send({"kind": "serve", "key": key, "prepare": prepare}, [2])
        answer = answer_of(channel, {"ready", "busy", "changed"}, SECONDS_TO_ANSWER)
        match answer:
            case {"kind": "ready", "pid": pid}:
                found = ForkServer(channel, pid)
                return found, f"workers start from the warm fork server at {path}"
            case {"kind": "busy"}:
                channel.close()
                remark = f"the warm fork server at {path} serves another job: this one imports anew"
                return ForkServer.started(ServerProcess(command)), remark
        channel.close()
        end_warm_server(path)
        changed = _some(answer["what"] if answer is not None else ["its answer"])
        remark = f"the warm fork server was replaced: {changed}"
    started = ForkServer.started(ServerProcess(replace(command, stays=True)))
    started.stay = {"path": str(path), "seconds": seconds, "key": key, "is_owned": is_owned}
    return started, remark


def socket_of(environ: Mapping[str, str], preparation: Preparation) -> Path | None:
    """Return where the server for one program in one folder listens; None: there is no safe place."""
    folder = socket_folder(environ)
    words = "\0".join((_folder(), *_program(preparation)))
    digest = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()
    return None if folder is None else folder / f"{_PREFIX}{digest[:16]}"


def _program(preparation: Preparation) -> tuple[str, ...]:
    """Return the words that workers have in common with those of other launches."""
    is_module = preparation.command[2] == "-m"
    return preparation.command[: 4 if is_module else 3]


def _some(names: list[str]) -> str:
    """Return what has changed, in words: the first few."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} changed"


def hold_warm_server(path: Path) -> socket.socket | None:
    """Have the server at ``path`` stay until this connection is closed; None if none listens there."""
    try:
        connection = connect_to(path, SECONDS_TO_ANSWER)
    except OSError:
        return None
    with suppress(OSError):
        connection.sendall(frame({"kind": "hold"}))
    return connection


def end_warm_server(path: Path) -> bool:
    """Have the server at ``path`` end as soon as it has no job; return whether one listened."""
    channel = connected(path)
    if channel is not None:
        channel.send({"kind": "end"})
        # It has removed its socket once it closes the connection.
        answer_of(channel, (), SECONDS_TO_ANSWER)
        channel.close()
    with suppress(OSError):
        path.unlink()
    return channel is not None


def end_warm_servers(environ: Mapping[str, str]) -> int:
    """Have all warm fork servers of this user end; return how many there were."""
    sockets = [path for folder in socket_folders(environ) for path in folder.glob(f"{_PREFIX}*")]
    return sum(map(end_warm_server, sockets))


def answer_of(channel: HelperChannel, kinds: Collection[str], seconds: float) -> Message | None:
    """Return the next message of these kinds, and drop others.

    None if the other end closes first, or takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not channel.closed and (left := deadline - time.monotonic()) > 0:
        poll.poll(min(left, 60.0) * 1000)
        for message, _ in channel.receive():
            if message["kind"] in kinds:
                return message
    return None


def connected(path: Path) -> HelperChannel | None:
    """Return a connection to this user's server that listens at ``path``; None if none does."""
    try:
        return HelperChannel(connect_to(path, SECONDS_TO_ANSWER))
    except OSError:
        return None


def _inheritance(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Return all that a child of this process inherits.

    Args:
        environment: the variables that it gets.
        python: its interpreter.

    Returns:
        Texts by name: two processes with equal texts start alike.

    """
    return {
        "interpreter": f"{python} {_stamp(python)}",
        "clusterrun": _stamp(__file__),
        "folder": _folder(),
        "user": f"{os.getresuid()} {os.getresgid()}",
        "umask": _status("Umask"),
        "terminal": _terminal(),
        "priority": f"{os.getpriority(os.PRIO_PROCESS, 0)} {os.sched_getscheduler(0)}"
        f" {os.sched_getparam(0).sched_priority}",
        "personality": _text("/proc/self/personality"),
        "core dumps": _text("/proc/self/coredump_filter"),
        "OOM score": _text("/proc/self/oom_score_adj"),
        "cgroup": _text("/proc/self/cgroup"),
        **{f"limit {name}": f"{resource.getrlimit(n)}" for name, n in _limits().items()},
        **{f"status {name}": _status(name) for name in (*_STATUS, *_STATUS_OF_THREADS)},
        **{f"namespace {each.name}": f"{each.readlink()}" for each in _namespaces()},
        **{
            f"variable {name}": value
            for name, value in environment.items()
            if name not in _CHANGES_BY_ITSELF
        },
    }


def _folder() -> str:
    """Return the current folder, with its device and inode; "deleted" if it is."""
    try:
        found = Path.cwd().stat()
    except FileNotFoundError:
        return "deleted"
    return f"{Path.cwd()} {found.st_dev}:{found.st_ino}"


def _terminal() -> str:
    """Return the controlling terminal with its session; "" if there is none."""
    number = int(next(iter(stat_fields(os.getpid())[_TERMINAL_FIELD:]), "0"))
    return f"{number} {os.getsid(0)}" if number else ""


def _limits() -> dict[str, int]:
    return {name: n for name, n in vars(resource).items() if name.startswith("RLIMIT_")}


def _namespaces() -> list[Path]:
    try:
        return sorted(Path("/proc/self/ns").iterdir())
    except OSError:
        return []


def _status(name: str) -> str:
    lines = _text("/proc/self/status").splitlines()
    return next((line for line in lines if line.startswith(f"{name}:")), "")


def _stamp(path: str) -> str:
    try:
        found = Path(path).stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
