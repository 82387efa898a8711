"""A client of a debugger: as much of the Debug Adapter Protocol as breakpoints need.

Like VS Code, it has one session for each child process of the debugged process.
"""

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.waiting import SECONDS_TO_ACT, text_of

Message = dict[str, Any]

ENDPOINTS = "endpoints.json"


class Debugger:
    """A session with one process."""

    def __init__(self, port: int) -> None:
        """Connect to the adapter's ``port``."""
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_TO_ACT)
        self._stream = self._socket.makefile("rb")
        self._sent = 0
        self._received: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def attach(self, breakpoints: dict[Path, list[int]], **request: object) -> None:
        """Run the process to one of these lines; ``request`` is as in a launch.json."""
        self._begin("attach", breakpoints, request)

    def launch(self, breakpoints: dict[Path, list[int]], **request: object) -> None:
        """Start a process by the adapter; ``request`` is as in a launch.json."""
        self._begin("launch", breakpoints, request)

    def child(self, breakpoints: dict[Path, list[int]]) -> "Debugger":
        """Return a session with the next child process, which runs to one of these lines."""
        request = self.event("debugpyAttach")["body"]
        with ExitStack() as on_failure:
            session = on_failure.enter_context(Debugger(self._port))
            session.attach(breakpoints, **request)
            on_failure.pop_all()
        return session

    def stop(self) -> None:
        """Do what the Stop button does."""
        self._send("disconnect", {"terminateDebuggee": True})

    def _begin(
        self, command: str, breakpoints: dict[Path, list[int]], request: dict[str, object]
    ) -> None:
        self.request("initialize", adapterID="test", linesStartAt1=True, pathFormat="path")
        beginning = self._send(command, {"justMyCode": False, **request})
        self.event("initialized")
        for path, lines in breakpoints.items():
            points = [{"line": line} for line in lines]
            self.request("setBreakpoints", source={"path": str(path)}, breakpoints=points)
        self.request("configurationDone")
        self._answer(beginning)

    def stopped(self) -> tuple[int, str, int]:
        """Wait until a thread has stopped; return its number, its function and its line."""
        thread: int = self.event("stopped")["body"]["threadId"]
        frame = self._frame(thread)
        return thread, frame["name"], frame["line"]

    def value(self, thread: int, expression: str) -> str:
        """Return the value of ``expression`` where the thread has stopped."""
        frame = self._frame(thread)
        answer = self.request(
            "evaluate", expression=expression, frameId=frame["id"], context="watch"
        )
        text: str = answer["body"]["result"]
        return text

    def resume(self, thread: int) -> None:
        """Continue a stopped thread."""
        self.request("continue", threadId=thread)

    def request(self, command: str, **arguments: object) -> Message:
        """Send a request; return its answer, which must be a success."""
        return self._answer(self._send(command, arguments))

    def event(self, name: str) -> Message:
        """Return the next event of this name that has not been returned yet."""
        return self._next(lambda message: message.get("event") == name, name)

    def _frame(self, thread: int) -> Message:
        frame: Message = self.request("stackTrace", threadId=thread)["body"]["stackFrames"][0]
        return frame

    def _send(self, command: str, arguments: Message) -> int:
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._sent

    def _answer(self, number: int) -> Message:
        answer = self._next(lambda message: message.get("request_seq") == number, f"to {number}")
        assert answer["success"], answer
        return answer

    def _next(self, matches: Callable[[Message], bool], name: str) -> Message:
        for message in [*self._received]:
            if matches(message):
                self._received.remove(message)
                return message
        deadline = time.monotonic() + SECONDS_TO_ACT
        while time.monotonic() < deadline:
            message = self._read()
            if matches(message):
                return message
            self._received.append(message)
        raise AssertionError(f"the debugged program did not send {name}: {self._received}")

    def _read(self) -> Message:
        size = 0
        while line := self._stream.readline().strip():
            size = int(line.removeprefix(b"Content-Length: "))
        assert size, "the debugged program closed the connection"
        message: Message = json.loads(self._stream.read(size))
        return message


def with_endpoints(folder: Path) -> dict[str, str]:
    """Return the variable that has debugpy's adapter write a file in ``folder``."""
    return {"DEBUGPY_ADAPTER_ENDPOINTS": str(folder / ENDPOINTS)}


def first_session(folder: Path) -> Debugger:
    """Return a session with the adapter that writes its file in ``folder``.

    Its port may not be used before: debugpy 1.8.22 sometimes answers no session if one comes while
    another thread has yet to set an attribute.
    """
    written = json.loads(text_of(folder / ENDPOINTS, "the adapter of debugpy", end="\n"))
    return Debugger(written["client"]["port"])
