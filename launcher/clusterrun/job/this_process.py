"""What a job takes from the launcher's own process and host."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from clusterrun.bounds import as_text
from clusterrun.cpuset import own_cpus
from clusterrun.job.values import LOOPBACK

COMMAND_TIMEOUT = 15.0
"""Seconds. A busy controller needs some; the launch waits for it."""


class CommandResult(Struct, frozen=True):
    """The output and the exit code of a command."""

    out: str
    err: str
    code: int | None
    """-N for signal N; None if the command did not start or timed out."""

    @property
    def error_text(self) -> str:
        """All that a command that failed has printed, or its exit code."""
        return as_text(self.err.strip() or self.out.strip()) or f"exit code {self.code}"

    @property
    def failure(self) -> str:
        """Why the command failed, in one line; "" if it succeeded."""
        if self.code == 0:
            return ""
        lines = (self.err or self.out).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if self.code is None:
            return last
        how = f"exit code {self.code}" if self.code > 0 else f"signal {-self.code}"
        return f"{last} ({how})" if last else how


def addresses_of(name: str) -> Collection[str]:
    """Return the addresses of a host from the resolver; for "" those of this machine."""
    import socket

    if not name:
        import psutil

        kinds = {socket.AF_INET, socket.AF_INET6}
        entries = (entry for each in psutil.net_if_addrs().values() for entry in each)
        return {entry.address.partition("%")[0] for entry in entries if entry.family in kinds}
    # A name may not resolve yet; nodes are reached later.
    with suppress(OSError, UnicodeError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(name, None)}
    return ()


LOOPBACK_HINT = "as root: ip link set lo up"


def loopback_error() -> str:
    """Return why this machine cannot connect to its loopback address; "" if it can."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket sends nothing here; the kernel only looks up the route.
            probe.connect((LOOPBACK, 1))
        except OSError as error:
            return f"this machine can't reach itself at {LOOPBACK}: {error.strerror}"
    return ""


def run_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdin: str = "",
    seconds: float = COMMAND_TIMEOUT,
) -> CommandResult:
    """Run a scheduler's ``command`` with ``stdin`` as its standard input; no failure raises."""
    import subprocess

    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            input=stdin.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        return CommandResult("", f"{command[0]}: {error.strerror}", None)
    except subprocess.TimeoutExpired:
        return CommandResult("", f"{command[0]}: no answer in {seconds:g} s", None)
    out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    return CommandResult(out, err, done.returncode)


def has_torch() -> bool:
    """Return whether this interpreter has torch, without importing it."""
    from importlib.util import find_spec

    return find_spec("torch") is not None


def is_under_shell() -> bool:
    """Return whether a shell with job control started this process (POSIX, "Process Groups").

    Such a shell is the session leader of its terminal, and gives each command its own process group.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        # The session has no terminal.
        return False
    return os.getpgrp() != os.getsid(0)


class ThisProcess(Struct, frozen=True):
    """This process and its host; tests replace the functions."""

    host: str
    """The kernel's name of the host."""
    cpus: int
    """The number of CPUs that the process may use."""
    python: str
    """The interpreter that runs clusterrun."""
    run_id: str
    """A name for the run; no other process of this host has it at the same time."""
    has_terminal: bool = False
    """Standard output and standard error are a terminal."""
    called: str = "clusterrun"
    """The name of the command; for ``torchrun``, all defaults are torchrun's."""
    is_merged: bool = False
    """The caller prints the output of this agent together with that of other agents."""
    user_id: int = 0
    addresses: Callable[[str], Collection[str]] = addresses_of
    run_command: Callable[[Sequence[str], Mapping[str, str]], CommandResult] = run_command
    has_torch: Callable[[], bool] = has_torch
    is_under_shell: Callable[[], bool] = is_under_shell
    now: Callable[[], float] = time.time
    """Returns seconds since the epoch."""


def this_process(called: str, *, is_merged: bool = False) -> ThisProcess:
    return ThisProcess(
        host=os.uname().nodename,
        cpus=len(own_cpus()),
        python=sys.executable,
        # Sorts by time.
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
        has_terminal=os.isatty(1) and os.isatty(2),
        called=called,
        is_merged=is_merged,
        user_id=os.getuid(),
    )
