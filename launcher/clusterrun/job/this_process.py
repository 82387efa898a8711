"""What a job takes from the process that describes it, and what it asks with its help."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

SECONDS_TO_ANSWER = 15.0
"""A busy controller takes seconds; the launch waits meanwhile."""


class Answer(Struct, frozen=True):
    """What a command has printed."""

    text: str
    error: str
    """Why it has failed, in one line; "" if it has not."""


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


def ask(command: Sequence[str], environ: Mapping[str, str]) -> Answer:
    """Run a scheduler's ``command`` and return what it prints, or why there is no answer.

    It runs once and for a limited time, and no failure raises an exception.
    """
    # Few jobs ask.
    import subprocess

    try:
        done = subprocess.run(
            command,
            # As seconds since the epoch: scontrol has no time zone in its times.
            env={**environ, "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except OSError as error:
        return Answer("", f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer("", f"no answer in {SECONDS_TO_ANSWER:g} s")
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return Answer(text, "")
    lines = (done.stderr.decode(errors="replace") or text).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
    return Answer("", f"{last} ({how})" if last else how)


class ThisProcess(Struct, frozen=True):
    """Where this process runs, and the defaults that come from it."""

    host: str
    """The host's name, as the kernel has it."""
    cpus: int
    """The number of CPUs that the process may use."""
    python: str
    """The interpreter for the workers."""
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
    ask: Callable[[Sequence[str], Mapping[str, str]], Answer] = ask
    """Runs a scheduler's command in an environment."""
    now: Callable[[], float] = time.time
    """Returns seconds since the epoch."""


def this_process(called: str, *, is_merged: bool = False) -> ThisProcess:
    return ThisProcess(
        host=os.uname().nodename,
        cpus=len(os.sched_getaffinity(0)),
        python=sys.executable,
        # Sorts by time.
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
        has_terminal=os.isatty(1) and os.isatty(2),
        called=called,
        is_merged=is_merged,
        user_id=os.getuid(),
    )
