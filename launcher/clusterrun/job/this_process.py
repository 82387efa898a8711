"""What a job takes from the process that describes it, and what it asks with its help."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from clusterrun.bounds import as_text
from clusterrun.cpuset import own_cpus
from clusterrun.job.values import LOOPBACK

SECONDS_TO_ANSWER = 15.0
"""A busy controller takes seconds; the launch waits meanwhile."""


class CommandResult(Struct, frozen=True):
    """What a command has printed, and how it has ended."""

    out: str
    err: str
    code: int | None
    """Its exit code, -N for signal N; None if it could not be started or was too slow."""

    @property
    def trouble(self) -> str:
        """Why it has failed, in all of its words."""
        return as_text(self.err.strip() or self.out.strip()) or f"exit code {self.code}"

    @property
    def failure(self) -> str:
        """Why it has failed, in one line; "" if it has not."""
        if self.code == 0:
            return ""
        lines = (self.err or self.out).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if self.code is None:
            return last
        how = f"exit code {self.code}" if self.code > 0 else f"signal {-self.code}"
        return f"{last} ({how})" if last else how


def addresses_of(name: str) -> Collection[str]:
    """Return the addresses of a host by the resolver; for "" those of this machine."""
    # Few jobs ask.
    import socket

    if not name:
        import psutil

        kinds = {socket.AF_INET, socket.AF_INET6}
        entries = (entry for each in psutil.net_if_addrs().values() for entry in each)
        return {entry.address.partition("%")[0] for entry in entries if entry.family in kinds}
    # A name that does not resolve may be that of a node which need not be reached yet.
    with suppress(OSError, UnicodeError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(name, None)}
    return ()


LOOPBACK_HINT = "as root: ip link set lo up"


def loopback_error() -> str:
    """Return why nothing on this machine can be reached at the loopback address; "" if it can."""
    # As for addresses.
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel looks for a way to it.
            probe.connect((LOOPBACK, 1))
        except OSError as error:
            return f"this machine can't reach itself at {LOOPBACK}: {error.strerror}"
    return ""


def ask(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdin: str = "",
    seconds: float = SECONDS_TO_ANSWER,
) -> CommandResult:
    """Run a scheduler's ``command`` with ``stdin`` as its standard input.

    It runs once and for a limited time, and no failure raises an exception.
    """
    # Few jobs ask.
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
    """Return whether this interpreter could import torch; it does not."""
    # Few launches ask.
    from importlib.util import find_spec

    return find_spec("torch") is not None


def is_under_shell() -> bool:
    """Return whether a shell with job control started this process: POSIX, "Process Groups".

    Such a shell leads the session of its terminal, and gives each command a process group of its own.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        # No terminal is the session's.
        return False
    return os.getpgrp() != os.getsid(0)


class ThisProcess(Struct, frozen=True):
    """Where this process runs, and the defaults that come from it."""

    host: str
    """The host's name, as the kernel has it."""
    cpus: int
    """The number of CPUs that the process may use."""
    python: str
    """The interpreter that runs clusterrun."""
    run_id: str
    """A name for the run, which no other process of this host has at the same time."""
    has_terminal: bool = False
    """Standard output and standard error are a terminal."""
    called: str = "clusterrun"
    """The name of the command; as ``torchrun``, every default is torchrun's."""
    is_merged: bool = False
    """Its caller shows its output, and that of other agents of the job in the same place."""
    user_id: int = 0
    addresses: Callable[[str], Collection[str]] = addresses_of
    """The addresses of a host by its name; this host's for ""."""
    ask: Callable[[Sequence[str], Mapping[str, str]], CommandResult] = ask
    """Runs a scheduler's command in an environment."""
    has_torch: Callable[[], bool] = has_torch
    """Whether ``python`` could import torch."""
    is_under_shell: Callable[[], bool] = is_under_shell
    """Whether an interactive shell on a terminal started it, or started what has started it."""
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
