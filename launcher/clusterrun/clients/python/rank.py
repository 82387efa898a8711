"""What each rank of a Python caller runs: it dials the caller, and makes the calls that come, one by one.

Executed as a script by the workers' interpreter (Python 3.8 or newer): it imports nothing of
clusterrun's but ``wire``, which lies beside it. The main thread reads calls; a second thread, on a
connection of its own, reads what interrupts them.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import types
from contextlib import suppress

# The fork server imports it once for all ranks.
import cloudpickle  # noqa: F401 - wire needs it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType
    from typing import Any

    from clusterrun.clients.python import wire

SECONDS_TO_CONNECT = 60.0
SECONDS_TO_ANSWER = 5.0
"""For each address: some of a host's are not reached from others."""

SECONDS_TO_BE_ENDED = 10.0


def _load_wire() -> Any:
    """Return the module ``wire`` beside this file, imported by the name that pickles have."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wire.py")
    spec = importlib.util.spec_from_file_location("clusterrun_wire", path)
    if spec is None or spec.loader is None:
        raise AssertionError("a file is a module")
    module = sys.modules["clusterrun_wire"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    wire = _load_wire()


def main() -> None:
    """Make calls until the caller has enough; raise what a last call has raised."""
    hosts, port, key = os.environ.pop("_CLUSTERRUN_CALLS").split("/")
    rank = RankServer([(host, int(port)) for host in hosts.split(",")], bytes.fromhex(key))
    # What a caller has in its __main__ has one of its own here.
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.excepthook = _print_without_our_frames
    try:
        rank.serve()
    except wire.Disconnected as error:
        # If the caller is gone, the launcher ends this process.
        time.sleep(SECONDS_TO_BE_ENDED)
        sys.exit(f"clusterrun: the connection to the caller is lost: {error}")


class RankServer:
    """One rank's two connections, and the call that it is in."""

    def __init__(self, addresses: Sequence[tuple[str, int]], key: bytes) -> None:
        """Connect, and introduce this rank."""
        who = {
            "rank": int(os.environ["RANK"]),
            "size": int(os.environ["WORLD_SIZE"]),
            "local_size": int(os.environ["LOCAL_WORLD_SIZE"]),
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "python": sys.version_info[:2],
        }
        self._calls = _dialled(addresses, key, {**who, "controls": False})
        self._control = _dialled(addresses, key, {**who, "controls": True})
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._call: int | None = None
        """The number of the call that the main thread is in."""
        self._interrupted: int | None = None
        """The newest call that is to be interrupted: it may not have begun here."""

    def serve(self) -> None:
        """Make calls; return after the last one, or raise what it has raised."""
        self._watcher.start()
        while True:
            frame = self._calls.receive()
            if frame is None:
                raise AssertionError("this socket blocks")
            kind, number, parts = frame
            # A call may be large: none is kept.
            del frame
            if kind == wire.LEAVE:
                return self._leave()
            if kind == wire.BREAK:
                self._calls.send(wire.RETURNED, number, wire.dumps(reset_process_groups()))
            elif kind == wire.LAST_CALL:
                return self._make_last_call(number, parts)
            elif kind == wire.CALL:
                signal.signal(signal.SIGINT, self._on_interrupt)
                answer = self._make_call(number, parts)
                del parts
                flush_output()
                self._calls.send(*answer)
                del answer

    def _make_call(self, number: int, parts: list[bytearray]) -> tuple[int, int, Sequence[Any]]:
        """Return the answer to a call."""
        try:
            try:
                self._call = number
                if self._interrupted == number:
                    raise KeyboardInterrupt
                return wire.RETURNED, number, _pickled(_called(parts))
            finally:
                self._call = None
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the rank lives on
            return wire.RAISED, number, _described(error)

    def _make_last_call(self, number: int, parts: list[bytearray]) -> None:
        """Answer, and then end as a script that does the same."""
        try:
            answer = _pickled(_called(parts))
        except SystemExit as error:
            if not error.code:
                self._calls.send(wire.RETURNED, number, wire.dumps(None))
            raise
        except BaseException as error:
            self._calls.send(wire.RAISED, number, _described(error))
            raise
        self._calls.send(wire.RETURNED, number, answer)
        self._leave()

    def _leave(self) -> None:
        # With a second thread, Python frees each object as it ends.
        self._control.sock.shutdown(socket.SHUT_RDWR)
        self._watcher.join()
        self._control.close()
        self._calls.close()

    # The second thread.

    def _watch(self) -> None:
        main_thread = threading.main_thread().ident or 0
        while True:
            try:
                frame = self._control.receive()
            except wire.Disconnected:
                return
            if frame is None:
                raise AssertionError("this socket blocks")
            kind, self._interrupted, _ = frame
            if self._interrupted == self._call:
                if kind == wire.BREAK:
                    abort_process_groups((self._calls.fileno(), self._control.fileno()))
                signal.pthread_kill(main_thread, signal.SIGINT)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        # Python runs this in the main thread. After a call, it comes too late.
        if self._call is not None:
            raise KeyboardInterrupt


def _dialled(
    addresses: Sequence[tuple[str, int]], key: bytes, who: dict[str, object]
) -> wire.RankConnection:
    """Return a connection to the caller at one of these addresses.

    It may have no room for strangers for a while.
    """
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    while True:
        for address in addresses:
            try:
                connection = wire.dial(address, key, SECONDS_TO_ANSWER)
            except (OSError, wire.Disconnected) as error:
                problem = error
            else:
                connection.send(wire.HELLO, 0, [pickle.dumps(who)])
                return connection
        if time.monotonic() > deadline:
            tried = ", ".join(host for host, _ in addresses)
            sys.exit(f"clusterrun: the caller can't be reached at {tried}: {problem}")
        time.sleep(0.1)


# Calls.


def _called(parts: list[bytearray]) -> Any:
    """Make a call; return what the function returns."""
    context = pickle.loads(parts[0])
    sys.argv[:], sys.path[:] = context["argv"], context["path"]
    os.environ.update(context["environ"])
    for name, lines in context["cells"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    function, args, kwargs = wire.loads(parts[1:])
    if context["local_rank_first"]:
        args = (int(os.environ["LOCAL_RANK"]), *args)
    return function(*args, **kwargs)


def _pickled(value: object) -> Sequence[Any]:
    """Return the parts of what a function has returned.

    Raises:
        TypeError: it can't be pickled.

    """
    try:
        return wire.dumps(value)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        what = type(value).__name__
        raise TypeError(f"what the function returned ({what}) can't be pickled: {error}") from None


def _described(error: BaseException) -> Sequence[Any]:
    """Return an exception's text, and the exception itself, if it can be pickled."""
    lines = traceback.format_exception(type(error), error, _without_our_frames(error))
    text = "".join(lines).encode("utf-8", "backslashreplace")
    try:
        return [text, *wire.dumps(error)]
    except Exception:  # noqa: BLE001 - an exception may hold anything
        return [text]


def flush_output() -> None:
    """Have the launcher see what was printed, before the caller sees the answer."""
    for stream in (sys.stdout, sys.stderr):
        # A function may put anything in their place.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


# Process groups.


def abort_process_groups(keep: Sequence[int]) -> None:
    """Have a main thread that waits in a collective come back: its groups are of no use any more.

    Args:
        keep: descriptors of sockets that stay.

    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return
    store = -1
    if distributed.is_initialized():
        store = int(os.environ.get("MASTER_PORT", "0"))
        try:
            # NCCL's collectives end by that.
            distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - as below
        except Exception as error:  # noqa: BLE001 - not documented; a rank that stays there is ended
            sys.stderr.write(f"clusterrun: process groups can't be aborted: {error}\n")
    # gloo can't abort: its collectives end with their connections. A rank that waits for others in
    # torch's store has no group yet, and comes back as its connection to the store ends.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            _shut_down(int(name), store)


def _shut_down(descriptor: int, store: int) -> None:
    """Shut a TCP connection down, if it is one, and neither end has the store's port."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    with copy:
        try:
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and store not in (copy.getsockname()[1], copy.getpeername()[1]):
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It is not connected.
            return


def reset_process_groups() -> tuple[bool, int]:
    """Drop the process groups; return whether there were some, and a free port for new ones.

    What still holds a group, as DDP does, keeps its store, whose keys a new group would find there.
    """
    distributed = sys.modules.get("torch.distributed")
    had_some = distributed is not None and distributed.is_initialized()
    if distributed is not None:
        if had_some:
            distributed.destroy_process_group()
        # A rank that was interrupted in init_process_group has counted a group that others have not:
        # the next ones would have different names, and hang. Not documented: without it, restart().
        world: Any = getattr(distributed.distributed_c10d, "_world", None)
        if hasattr(world, "group_count"):
            world.group_count = 0
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return had_some, port


# Tracebacks.


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of these files, with which it begins."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, wire.__file__):
        frames = frames.tb_next
    return frames


def _print_without_our_frames(
    kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    # Python prints the traceback that the exception has, not the argument.
    error.__traceback__ = _without_our_frames(error) or error.__traceback__
    if any(entry[1] is None for entry in linecache.cache.values() if len(entry) == 4):
        # Before 3.13, Python's own hook reads lines from files only.
        traceback.print_exception(kind, error, error.__traceback__)
    else:
        sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    main()
    # The fork server reads it.
    __ends_at_once__ = True
