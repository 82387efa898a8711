"""A job whose fork server is warm: one that an earlier job has left, or one that this job leaves."""

import sys
from collections.abc import Mapping
from pathlib import Path

from clusterrun.domain.preparation import Preparation
from clusterrun.run.fork_server_start import start_fork_server
from clusterrun.run.job_machine import LocalJob
from clusterrun.user_sockets import socket_folder
from clusterrun.workers.fork_server.channel import Message
from clusterrun.workers.fork_server_client import ForkServer, preparation_message
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.inheritance import inheritance, inherited_folder
from clusterrun.workers.server_child import ServerChild
from clusterrun.workers.warm_fork_server import (
    SECONDS_TO_ANSWER,
    answer_of,
    connect,
    end_warm_server,
    socket_in,
)


def warm_or_new(local: LocalJob, preparation: Preparation | None, owned_socket: str) -> ForkServer:
    """Return a child of a warm fork server, or a fork server that ends with the job.

    Args:
        local: the job.
        preparation: what its fork server is to prepare; None: its workers are spawned.
        owned_socket: where a warm server listens that the caller ends itself; "": it is for all
            launches of the program.

    Raises:
        LauncherError: the interpreter can't be executed.

    """
    found, remark = _warm(local, preparation, owned_socket)
    if remark and (local.resolved.verbose or not (found or owned_socket)):
        sys.stderr.write(f"clusterrun: {remark}\n")
    return found or start_fork_server(local.resolved, local.variables)


def _warm(
    local: LocalJob, preparation: Preparation | None, owned_socket: str
) -> tuple[ServerChild | None, str]:
    """Return the child, None if no server can be kept warm, and a remark."""
    job = local.job
    if preparation is None:
        return None, f"{job.origin('keep_warm')}: the workers are spawned, so that nothing stays"
    if job.workers.cluster != "none" and not owned_socket:
        return None, (
            f"{job.origin('keep_warm')}: nothing stays after a job of {job.workers.cluster}, which ends"
            " with all of its processes"
        )
    path = Path(owned_socket) if owned_socket else _path(local.variables, preparation)
    if path is None:
        return (
            None,
            f"{job.origin('keep_warm')}: there is no folder for its socket that is yours alone",
        )
    prepare = preparation_message(preparation)
    request: Message = {
        "key": {
            **inheritance(local.environment, job.python),
            "preparation": repr({**prepare, "command": _program(preparation)}),
            "contain": repr(job.failing.contain),
        },
        "prepare": prepare,
    }
    found = connect(path, request, job.python)
    if isinstance(found, ServerChild):
        return found, f"workers start from the warm fork server at {path}"
    if found:
        end_warm_server(path)
    started = _start(local, request, path, local.environment, is_owned=bool(owned_socket))
    if started is None:
        return None, f"{job.origin('keep_warm')}: workers can't be forked, so that nothing stays"
    return started, f"the warm fork server was replaced: {_some(found)}" if found else ""


def _start(
    local: LocalJob,
    request: Message,
    path: Path,
    environment: Mapping[str, str],
    *,
    is_owned: bool,
) -> ServerChild | None:
    """Start a server that stays, and return its child for this job; None if it can't stay."""
    job = local.job
    process = ForkServerProcess.start(
        job.python,
        environment,
        contain=job.failing.contain,
        shown=request["prepare"]["command"],
        stays=True,
    )
    try:
        if not _is_prepared(process, request["prepare"]):
            return None
        stay = {
            "path": str(path),
            "seconds": job.starting.keep_warm,
            "key": request["key"],
            "is_owned": is_owned,
        }
        process.channel.send({"kind": "stay_warm", **stay})
        if answer_of(process.channel, {"warm"}, SECONDS_TO_ANSWER) is None:
            return None
    finally:
        process.close()
    found = connect(path, request, job.python)
    return found if isinstance(found, ServerChild) else None


def _is_prepared(process: ForkServerProcess, prepare: Message) -> bool:
    """Return whether workers can be forked from it; imports have their own limit of time."""
    if answer_of(process.channel, {"ready", "not_contained"}, float("inf")) is None:
        return False
    process.becomes_ready()
    process.channel.send({"kind": "prepare", **prepare})
    answer = answer_of(process.channel, {"prepared"}, float("inf"))
    return answer is not None and bool(answer["in_place"])


def _program(preparation: Preparation) -> tuple[str, ...]:
    """Return the words that workers have in common with those of other launches."""
    is_module = preparation.command[2] == "-m"
    return preparation.command[: 4 if is_module else 3]


def _path(variables: Mapping[str, str], preparation: Preparation) -> Path | None:
    folder = socket_folder(variables)
    return (
        None if folder is None else socket_in(folder, (inherited_folder(), *_program(preparation)))
    )


def _some(names: list[str]) -> str:
    """Return what has changed, in words: the first few."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} changed"
