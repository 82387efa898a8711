"""An interactive bash on a pseudo-terminal, with simulated key presses."""

import os
import pty
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil

from tests.contract.launched import (
    COMMAND,
    MARK,
    SECONDS_TO_VANISH,
    kill_marked,
    plain_environment,
    remaining_processes,
)
from tests.waiting import SECONDS_TO_ACT, wait_until

PROMPT = "ready-to-type> "
BASH = ("bash", "--norc", "--noprofile", "-i")

KEYS = {"Ctrl-C": b"\x03", "Ctrl-Z": b"\x1a", "Ctrl-\\": b"\x1c", "Ctrl-D": b"\x04"}


class Shell:
    """An interactive shell; ``close`` ends every process started in it."""

    def __init__(self, folder: Path, words: tuple[str, ...] = BASH, **environ: str) -> None:
        """Start the shell in ``folder``, where scripts are written, too."""
        self.folder = folder
        self.mark = f"shell-{os.getpid()}-{time.monotonic_ns()}"
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            # No colours and no bracketed paste: only the tested output appears.
            variables = {**plain_environment(), MARK: self.mark, "PS1": PROMPT, "TERM": "dumb"}
            os.execvpe(words[0], words, {**variables, **environ})
        self._unread = ""
        if words == BASH:
            self.expect(PROMPT)

    def run(self, text: str, *options: str, after: str = "") -> None:
        """Type the command that runs a script with this text, followed by ``after``."""
        (self.folder / "script.py").write_text(dedent(text))
        self.type(" ".join((COMMAND, *options, "script.py", after)))

    def type(self, line: str) -> None:
        self.type_keys(f"{line}\r")

    def type_keys(self, keys: str) -> None:
        """Type text that may not be a complete line."""
        os.write(self.descriptor, keys.encode())

    def press(self, key: str) -> None:
        """Press a key for which the terminal sends a signal or an end of file."""
        os.write(self.descriptor, KEYS[key])

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until ``pattern`` is in the unread output; return the match."""
        deadline = time.monotonic() + SECONDS_TO_ACT
        while not (found := re.search(pattern, self._unread)):
            ready, _, _ = select.select([self.descriptor], [], [], deadline - time.monotonic())
            assert ready, f"no {pattern!r} in time:\n{self._unread}"
            self._unread += os.read(self.descriptor, 1 << 16).decode(errors="replace")
        self._unread = self._unread[found.end() :]
        return found

    def exit_code(self) -> int:
        """Wait for the prompt and return the exit code of the last command.

        The shell reads what is typed: it has its terminal back.
        """
        self.expect(PROMPT)
        self.type("echo code=$?")
        code = self.expect(r"code=(\d+)").group(1)
        self.expect(PROMPT)
        return int(code)

    def stop_job(self) -> None:
        """Press Ctrl-Z, and wait until the shell reads input."""
        self.press("Ctrl-Z")
        self.expect("Stopped")
        assert self.exit_code() in {128 + signal.SIGTSTP, 128 + signal.SIGSTOP}

    def bring_back(self, group: int) -> None:
        """Continue the stopped job in the foreground; ``group`` gets the terminal."""
        self.type("fg")
        self.await_foreground(group)

    def await_foreground(self, group: int) -> None:
        """Wait until this process group has the terminal."""
        # The kernel sends no event when the foreground group changes.
        wait_until(
            lambda: os.tcgetpgrp(self.descriptor) == group, f"group {group} has the terminal"
        )

    @property
    def launcher(self) -> int:
        """Process id of the launcher, the shell's only child."""
        (child,) = psutil.Process(self.pid).children()
        return child.pid

    def left(self, seconds: float = SECONDS_TO_VANISH) -> list[str]:
        """Return the processes started here that are still alive after ``seconds``."""
        return remaining_processes(self.mark, seconds, besides=self.pid)

    def close(self) -> None:
        """Kill the shell and every process that was started in it."""
        kill_marked(self.mark)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.descriptor)
