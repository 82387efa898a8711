"""The network namespaces of this test run and of killed runs.

All that a run creates outside its own folders has the name of the run: the process id and the start
time of its main process, because process ids are reused.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

NAMESPACES = Path("/run/netns")
"""Where iproute2 keeps the names of namespaces."""

FOLDERS = Path("/run/clusterrun-tests")
"""Where each run has a folder; not in /tmp, which munged and slurmd do not trust."""

PREFIX = "clusterrun-test-"

SECONDS_TO_DIE = 10.0


def run_of(pid: int) -> str:
    """Return the name of the test run whose main process is ``pid``.

    Raises:
        FileNotFoundError: there is no such process.

    """
    # The 22nd field; the second, the command's name, may hold spaces and brackets.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}-{fields[19]}"


def ip(*words: str, lines: Iterable[str] = ()) -> None:
    """Run iproute2's ``ip``, with ``lines`` as its batch file.

    Raises:
        RuntimeError: it refused; the message is ip's.

    """
    batch = ("-batch", "-") if lines else ()
    done = subprocess.run(
        ["ip", *words, *batch],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def folder_of(run: str) -> Path:
    """Create and return the folder of a test run."""
    folder = FOLDERS / run
    # 0755 whatever the umask: Slurm's jobs and munge's clients read files there.
    for path in (FOLDERS, folder):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    return folder


def remove_leftovers() -> None:
    """Remove the processes, namespaces and folders of runs that have ended."""
    for namespace in _all_namespaces():
        if not _is_alive(namespace.name.removeprefix(PREFIX)):
            remove_namespace(namespace.name)
    for folder in _children(FOLDERS):
        if not _is_alive(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder of a run, and the folder of the run with the last one."""
    shutil.rmtree(folder)
    with suppress(OSError):
        folder.parent.rmdir()


def remove_namespace(name: str) -> None:
    """End all processes in a namespace and remove it."""
    end_processes(name)
    # Another run may be removing it at the same time.
    with suppress(RuntimeError):
        ip("netns", "delete", name)


def processes_in(name: str) -> list[int]:
    """Return the ids of all processes in a namespace."""
    with suppress(FileNotFoundError):
        inside = (NAMESPACES / name).stat()
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _is_in(pid, inside)]
    return []


def end_processes(name: str) -> None:
    """Kill all processes in a namespace, and those that they start meanwhile.

    Raises:
        TimeoutError: a process survives.

    """
    deadline = time.monotonic() + SECONDS_TO_DIE
    while living := processes_in(name):
        _kill(living, deadline - time.monotonic())
        if time.monotonic() > deadline:
            raise TimeoutError(f"can't end {living} in {name}")


def _kill(pids: Iterable[int], seconds: float) -> None:
    with ExitStack() as opened:
        killed = [end for pid in pids for end in _descriptor(pid, opened)]
        for end in killed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
        for end in killed:
            select.select([end], [], [], max(0.0, seconds))


def _descriptor(pid: int, opened: ExitStack) -> Iterator[int]:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        opened.callback(os.close, descriptor)
        yield descriptor


def _is_in(pid: int, namespace: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(Path(f"/proc/{pid}/ns/net").stat(), namespace)
    return False


def _is_alive(name: str) -> bool:
    pid, start = name.split("-")[:2]
    try:
        return run_of(int(pid)) == f"{pid}-{start}"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _all_namespaces() -> Iterator[Path]:
    return (path for path in _children(NAMESPACES) if path.name.startswith(PREFIX))


def _children(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return sorted(folder.iterdir())
    return []
