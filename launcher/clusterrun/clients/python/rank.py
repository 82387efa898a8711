"""The program of each rank of a Python caller: it connects to the caller, and makes one call after another.

The workers' interpreter (Python 3.8 or newer) executes it as a script. From clusterrun it imports only
``wire``, which is in the same folder. The main thread reads calls. A second thread, with its own
connection, reads interrupts.
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

# Imported here so the fork server imports it once for all ranks.
import cloudpickle  # noqa: F401 - wire needs it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType
    from typing import Any

    from clusterrun.clients.python import wire

SECONDS_TO_CONNECT = 60.0
SECONDS_PER_ADDRESS = 5.0
"""Some addresses of a host may not be reachable from others."""

SECONDS_TO_BE_KILLED = 10.0


def _load_wire() -> Any:
    """Import wire.py from the folder of this file, by the name that pickles use."""
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
    """Make calls until the caller ends this rank; raise the exception of a last call."""
    hosts, port, key = os.environ.pop("_CLUSTERRUN_CALLS").split("/")
    rank = RankServer([(host, int(port)) for host in hosts.split(",")], bytes.fromhex(key))
    # Objects of the caller's __main__ arrive in this module.
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.excepthook = _print_without_our_frames
    try:
        rank.serve()
    except wire.Disconnected as error:
        # If the caller is gone, the launcher kills this process.
        time.sleep(SECONDS_TO_BE_KILLED)
        sys.exit(f"clusterrun: the connection to the caller is lost: {error}")


class RankServer:
    """Serves the caller of this rank over two connections."""

    def __init__(self, addresses: Sequence[tuple[str, int]], key: bytes) -> None:
        """Connect, and send a hello on both connections."""
        hello = {
            "rank": int(os.environ["RANK"]),
            "size": int(os.environ["WORLD_SIZE"]),
            "local_size": int(os.environ["LOCAL_WORLD_SIZE"]),
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "python": sys.version_info[:2],
        }
        self._calls = _connect(addresses, key, {**hello, "controls": False})
        self._control = _connect(addresses, key, {**hello, "controls": True})
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._current_call: int | None = None
        """The number of the call in which the main thread is."""
        self._call_to_interrupt: int | None = None
        """The newest call to interrupt, which may not have begun on this rank."""

    def serve(self) -> None:
        """Make calls; return after the last one, or raise its exception."""
        self._watcher.start()
        while True:
            frame = self._calls.receive()
            if frame is None:
                raise AssertionError("this socket blocks")
            kind, number, parts = frame
            # Frames may be large, so free them early.
            del frame
            if kind == wire.EXIT:
                return self._disconnect()
            if kind == wire.ABORT:
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
                self._current_call = number
                if self._call_to_interrupt == number:
                    raise KeyboardInterrupt
                return wire.RETURNED, number, _pickle_result(_call_function(parts))
            finally:
                self._current_call = None
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the rank lives on
            return wire.RAISED, number, _pickle_exception(error)

    def _make_last_call(self, number: int, parts: list[bytearray]) -> None:
        """Answer, and then end like a script: with the exception or exit code of the function."""
        try:
            answer = _pickle_result(_call_function(parts))
        except SystemExit as error:
            if not error.code:
                self._calls.send(wire.RETURNED, number, wire.dumps(None))
            raise
        except BaseException as error:
            self._calls.send(wire.RAISED, number, _pickle_exception(error))
            raise
        self._calls.send(wire.RETURNED, number, answer)
        self._disconnect()

    def _disconnect(self) -> None:
        # While a second thread exists, the worker would have to finalize Python, which is slow.
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
            kind, self._call_to_interrupt, _ = frame
            if self._call_to_interrupt == self._current_call:
                if kind == wire.ABORT:
                    abort_process_groups((self._calls.fileno(), self._control.fileno()))
                signal.pthread_kill(main_thread, signal.SIGINT)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        # This runs in the main thread, perhaps when the call has already ended.
        if self._current_call is not None:
            raise KeyboardInterrupt


def _connect(
    addresses: Sequence[tuple[str, int]], key: bytes, hello: dict[str, object]
) -> wire.RankConnection:
    """Return a connection to the caller at one of these addresses.

    Failures are retried: the caller drops connections while too many are unauthenticated.
    """
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    while True:
        for address in addresses:
            try:
                connection = wire.dial(address, key, SECONDS_PER_ADDRESS)
            except (OSError, wire.Disconnected) as error:
                problem = error
            else:
                connection.send(wire.HELLO, 0, [pickle.dumps(hello)])
                return connection
        if time.monotonic() > deadline:
            tried = ", ".join(host for host, _ in addresses)
            sys.exit(f"clusterrun: the caller can't be reached at {tried}: {problem}")
        time.sleep(0.1)


# Calls.


def _call_function(parts: list[bytearray]) -> Any:
    """Unpickle a call, make it, and return its result."""
    context = pickle.loads(parts[0])
    sys.argv[:], sys.path[:] = context["argv"], context["path"]
    os.environ.update(context["environ"])
    for name, lines in context["cells"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    function, args, kwargs = wire.loads(parts[1:])
    if context["local_rank_first"]:
        args = (int(os.environ["LOCAL_RANK"]), *args)
    return function(*args, **kwargs)


def _pickle_result(value: object) -> Sequence[Any]:
    """Return the parts of a function's result.

    Raises:
        TypeError: the result can't be pickled.

    """
    try:
        return wire.dumps(value)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        what = type(value).__name__
        raise TypeError(f"what the function returned ({what}) can't be pickled: {error}") from None


def _pickle_exception(error: BaseException) -> Sequence[Any]:
    """Return the traceback of an exception, and the exception itself if it can be pickled."""
    lines = traceback.format_exception(type(error), error, _without_our_frames(error))
    text = "".join(lines).encode("utf-8", "backslashreplace")
    try:
        return [text, *wire.dumps(error)]
    except Exception:  # noqa: BLE001 - an exception may hold anything
        return [text]


def flush_output() -> None:
    """Flush the output, so it is shown before the caller gets the answer."""
    for stream in (sys.stdout, sys.stderr):
        # A function may have replaced them by anything.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


# Process groups.


def abort_process_groups(keep: Sequence[int]) -> None:
    """Make a main thread that waits in a collective return; its process groups are unusable then.

    Args:
        keep: descriptors of sockets that are not shut down.

    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return
    store_port: int | None = None
    if distributed.is_initialized():
        store_port = int(os.environ.get("MASTER_PORT", "0"))
        try:
            # This ends NCCL's collectives.
            distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - as below
        except Exception as error:  # noqa: BLE001 - not documented; a rank that hangs is killed
            sys.stderr.write(f"clusterrun: process groups can't be aborted: {error}\n")
    # gloo can't abort; its collectives end with their connections. A rank that waits in torch's store
    # for others has no group yet, and returns when its connection to the store is shut down.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            _shut_down_connection(int(name), store_port)


def _shut_down_connection(descriptor: int, store_port: int | None) -> None:
    """Shut down a descriptor that is a TCP connection, unless it is one to the store."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    with copy:
        try:
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and store_port not in (copy.getsockname()[1], copy.getpeername()[1]):
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The socket is not connected.
            return


def reset_process_groups() -> tuple[bool, int]:
    """Destroy the process groups; return whether there were any, and a free port for new ones.

    A new port is needed because objects such as DDP keep an old group alive, and its store, in which a new
    group would find old keys.
    """
    distributed = sys.modules.get("torch.distributed")
    existed = distributed is not None and distributed.is_initialized()
    if distributed is not None:
        if existed:
            distributed.destroy_process_group()
        # A rank that was interrupted in init_process_group has counted a group that others have not, so
        # names of later groups would differ, and they would hang. Without this undocumented counter,
        # users need restart().
        world: Any = getattr(distributed.distributed_c10d, "_world", None)
        if hasattr(world, "group_count"):
            world.group_count = 0
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return existed, port


# Tracebacks.


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback without its leading frames in rank.py and wire.py."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, wire.__file__):
        frames = frames.tb_next
    return frames


def _print_without_our_frames(
    kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    # Python prints the exception's traceback, not the argument.
    error.__traceback__ = _without_our_frames(error) or error.__traceback__
    if any(entry[1] is None for entry in linecache.cache.values() if len(entry) == 4):
        # Before Python 3.13, the default hook reads source lines from files only.
        traceback.print_exception(kind, error, error.__traceback__)
    else:
        sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    main()
    # For the fork server.
    __ends_at_once__ = True
