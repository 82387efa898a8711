"""From text to value: one function for each kind of value that an option can have.

Each takes what the user typed and raises ``UnreadableError`` where it says nothing sensible.
The sentences fit a flag, a variable and a key of a file alike; the caller knows which it was.
"""

from enum import Enum
from pathlib import Path
from typing import TypeVar

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.job import NumaBinding, NumaMemory, StartMethod, WorkerCount
from clusterrun.domain.ranks import RankSet
from clusterrun.domain.streams import Std, StreamChoice
from clusterrun.sources.options.suggestions import did_you_mean, did_you_mean_file
from clusterrun.sources.other_launchers.nested_launches import WORKER_VARIABLES
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

NameT = TypeVar("NameT", bound=Enum)

LONGEST_WAIT = 604_800.0
"""Seconds in a week: no grace is longer, and the kernel's timers take no infinity."""


ARCHIVES = (".tar.xz", ".tar.gz", ".tgz")
"""How the names of archives end that can be written."""

LONGEST_RUN_ID = 200
"""Bytes: file systems allow 255 in a name, and folders are called by the run's name and more."""

SHORTEST_SILENCE = 0.5
"""Seconds: the kernel alone may keep a lost packet from being sent again for so long."""


class UnreadableError(ValueError):
    """A text that is no value of the option: what is wrong with it, and what to write instead."""

    def __init__(self, complaint: str, hint: str) -> None:
        """Take the ``complaint`` ("'x' is not a port") and the ``hint`` ("give a number ...")."""
        super().__init__(complaint)
        self.complaint = complaint
        self.hint = hint


def node_count(text: str) -> int:
    """Read the number of nodes, ``N``, or the most of ``MIN:MAX``."""
    return _node_range(text)[1]


def fewest_nodes(text: str) -> int:
    """Read how many nodes are enough: ``N``, or the least of ``MIN:MAX``."""
    return _node_range(text)[0]


def _node_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    fewest, most = _whole_number(low), _whole_number(high or low)
    if not fewest or not most or fewest > most:
        raise UnreadableError(
            f"{text!r} is not a number of nodes", "give a number from 1, or MIN:MAX"
        )
    return fewest, most


def node_rank(text: str) -> int:
    """Read the index of a node, from 0."""
    rank = _whole_number(text)
    if rank is None:
        raise UnreadableError(f"{text!r} is not the rank of a node", "give a number from 0")
    return rank


def rank(text: str) -> int:
    """Read the rank of a worker in the whole job, from 0."""
    number = _whole_number(text)
    if number is None:
        raise UnreadableError(f"{text!r} is not the rank of a worker", "give a number from 0")
    return number


def worker_count(text: str) -> int | WorkerCount:
    """Read the number of workers per node: a number from 1, ``auto``, ``gpu`` or ``cpu``.

    torchrun's ``xpu`` means Intel's GPUs, which are counted as any other.
    """
    words = {"auto": WorkerCount.AUTO, "gpu": WorkerCount.GPU, "cpu": WorkerCount.CPU}
    count = (words | {"xpu": WorkerCount.GPU}).get(text) or _whole_number(text)
    if not count:
        hint = "give a number from 1, or auto, gpu or cpu"
        raise UnreadableError(
            f"{text!r} is not a number of workers", did_you_mean(text, words) or hint
        )
    return count


def restart_count(text: str) -> int:
    """Read a number from 0."""
    count = _whole_number(text)
    if count is None:
        raise UnreadableError(f"{text!r} is not a number of restarts", "give a number from 0")
    return count


def port(text: str) -> int | None:
    """Read a TCP port; 0 means, as for torchrun, that one is chosen: None."""
    number = _whole_number(text)
    if number is None or number > 65535:
        raise UnreadableError(
            f"{text!r} is not a port", "give a number from 1 to 65535, or 0 to have one chosen"
        )
    return number or None


def seconds(text: str) -> float:
    """Read a number of seconds, from 0 to a week."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= LONGEST_WAIT:
        raise UnreadableError(
            f"{text!r} is not a time in seconds", "give a number of seconds, such as 25 or 0.5"
        )
    return number


def waiting_time(text: str) -> float:
    """Read a number of seconds that leaves some time to wait: from half a second."""
    number = seconds(text)
    if number < SHORTEST_SILENCE:
        raise UnreadableError(
            f"{text!r} is too short a time to tell a silent node from a busy one",
            f"give at least {SHORTEST_SILENCE:g}",
        )
    return number


def exit_codes(text: str) -> tuple[int, ...]:
    """Read exit codes and ranges of them, ``3,5-7``; in order, each once."""
    hint = "give numbers from 1 to 255 and ranges of them, such as 3,5-7"
    codes: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first, last = _whole_number(low), _whole_number(high if dash else low)
        if not first or not last or not first <= last <= 255:
            raise UnreadableError(f"{part!r} is no exit code of a failure", hint)
        codes.update(range(first, last + 1))
    return tuple(sorted(codes))


def streams(text: str) -> StreamChoice:
    """Read which streams: ``3`` for everyone, or ``LOCALRANK:N,...`` with any number of digits."""
    if "," not in text and ":" not in text:
        return StreamChoice(_std(text, text), {})
    named: dict[int, Std] = {}
    for part in text.split(","):
        rank_text, _, number = part.partition(":")
        rank = _whole_number(rank_text)
        if rank is None:
            raise _no_streams(part)
        if rank in named:
            raise UnreadableError(
                f"{text!r} names local rank {rank} twice", "leave out one of them"
            )
        named[rank] = _std(number, part)
    return StreamChoice(Std.NONE, named)


def _std(number: str, text: str) -> Std:
    streams = _whole_number(number)
    if streams is None or streams > Std.ALL:
        raise _no_streams(text)
    return Std(streams)


def _no_streams(text: str) -> UnreadableError:
    return UnreadableError(
        f"{text!r} does not say which streams",
        "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or that for each"
        " local rank: 0:3,1:2",
    )


def ranks(text: str) -> RankSet:
    """Read ranks and ranges of them, ``0,8-15``."""
    found = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first, last = _whole_number(low), _whole_number(high if dash else low)
        if first is None or last is None or first > last:
            raise UnreadableError(
                f"{part!r} is not a rank", "give numbers from 0 and ranges of them, such as 0,8-15"
            )
        found.append((first, last))
    return RankSet(tuple(found))


def line_prefix(text: str) -> str | None:
    """Read the template of what stands before a line; "" is torchrun's way to say: the usual."""
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UnreadableError(f"{text!r} is more than one line", "leave line breaks out")
    return text or None


def line_filters(text: str) -> tuple[str, ...]:
    """Read texts to look for in lines, separated by commas; two commas are one of a text's own."""
    found = tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    if not all(found) or "\n" in text:
        raise UnreadableError(
            f"{text!r} has a text in it that no line or every line contains",
            "give texts such as error,warning; two commas stand for one that belongs to a text",
        )
    return found


def switch(text: str) -> bool:
    """Read yes or no in the three usual spellings."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise UnreadableError(f"{text!r} is neither yes nor no", "give 1 or 0, true or false")
    return words[text.lower()]


def numa_binding(text: str) -> NumaBinding:
    """Read the name of a binding."""
    return _one_of(NumaBinding, text, "NUMA binding")


def numa_memory(text: str) -> NumaMemory:
    """Read the name of a memory policy."""
    return _one_of(NumaMemory, text, "memory policy")


def start_method(text: str) -> StartMethod:
    """Read the name of a way to start workers."""
    if text == "forkserver":
        # torchrun's third word, for what we do where it is safe.
        return StartMethod.AUTO
    return _one_of(StartMethod, text, "start method")


def _one_of(names: type[NameT], text: str, kind: str) -> NameT:
    known = [name.value for name in names]
    if text not in known:
        hint = f"give one of {', '.join(known)}"
        raise UnreadableError(f"{text!r} is not a {kind}", did_you_mean(text, known) or hint)
    return names(text)


def gpus_per_worker(text: str) -> int:
    """Read a number of GPUs."""
    count = _whole_number(text)
    if count is None:
        hint = "give a number; 0 if workers share GPUs, or use none"
        raise UnreadableError(f"{text!r} is not a number of GPUs", hint)
    return count


def preload(text: str) -> str | tuple[str, ...]:
    """Read ``auto``, ``all``, ``none`` or the names of modules."""
    if text in {"auto", "all", "none"}:
        return text
    modules = tuple(module.strip() for module in text.split(","))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UnreadableError(
                f"{module!r} is not the name of a module",
                "give auto, all, none, or modules such as torch,numpy",
            )
    return modules


def address(text: str) -> str:
    """Read a host name or an IP address, without a port; the brackets of an IPv6 address go."""
    try:
        found = Endpoint.parse(text)
    except ValueError:
        raise UnreadableError(
            f"{text!r} is not a host", "give a host name or an IP address"
        ) from None
    if found.port is not None:
        raise UnreadableError(
            f"{text!r} has a port in it",
            f"give {found.host} here, and --master-port {found.port}",
        )
    return found.host


def endpoint(text: str) -> str:
    """Read a host with or without a port."""
    try:
        return str(Endpoint.parse(text))
    except ValueError:
        raise UnreadableError(
            f"{text!r} is not a place to meet", "give HOST, HOST:PORT or [IPV6]:PORT"
        ) from None


def cluster(text: str) -> str:
    """Read the name of a cluster or ``none``; which there are is the business of detection."""
    return text


def run_id(text: str) -> str:
    """Read the name of a run, which also names its folder in the log directory."""
    if not text or text in {".", ".."} or "/" in text or not text.isprintable():
        raise UnreadableError(
            f"{text!r} cannot name a run, and the folder of its logs", "give a word without a /"
        )
    if len(text.encode()) > LONGEST_RUN_ID:
        raise UnreadableError(
            f"{text[:20]!r}... has {len(text.encode())} bytes, too many to name a folder by",
            f"give a name of at most {LONGEST_RUN_ID} bytes",
        )
    return text


def path(text: str) -> str:
    """Read the path of a file or folder, which need not exist."""
    if not text:
        raise UnreadableError("the path is empty", "give the path of a file or folder")
    if text.startswith("~"):
        # Made as it stands, a folder called "~" invites its owner to rm -r it.
        raise UnreadableError(
            f"{text!r} has a ~, and nothing but a shell expands it", "write the path in full"
        )
    return text


def captured_machine(text: str) -> Path:
    """Read the path of a folder or file that exists; what is in it is the business of its reader."""
    match kind_of(path(text)):
        case FileKind.FILE | FileKind.FOLDER:
            return Path(text)
        case FileKind.OTHER:
            complaint = f"{text} is neither a folder nor a file"
        case FileKind.NOTHING:
            complaint = f"{text} does not exist"
    hint = did_you_mean_file(text) or "give a captured machine, its folder or its archive"
    raise UnreadableError(complaint, hint)


def new_archive(text: str) -> Path:
    """Read the path of an archive to write, which need not exist."""
    if not path(text).endswith(ARCHIVES) or kind_of(text) is FileKind.FOLDER:
        raise UnreadableError(
            f"{text!r} is not the name of an archive", "give a name that ends in .tar.xz or .tar.gz"
        )
    return Path(text)


def cpu_list(text: str) -> CpuSet:
    """Read CPUs as the kernel and taskset write them: ``0-15,64``; at least one."""
    try:
        cpus = CpuSet.parse(text)
    except ValueError:
        cpus = CpuSet()
    if not cpus:
        raise UnreadableError(
            f"{text!r} is not a list of CPUs", "give numbers and ranges of them, such as 0-15,64-79"
        )
    return cpus


def setting(text: str) -> dict[str, str]:
    """Read ``NAME=VALUE``, a variable for the workers: its value by its name."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UnreadableError(
            f"{text!r} has no = in it", "write NAME=VALUE, such as NCCL_DEBUG=INFO"
        )
    return {variable_name(name): value}


def variable_name(text: str) -> str:
    """Read the name of an environment variable that a job may set for its workers."""
    if not (text.isascii() and text.isidentifier()):
        raise UnreadableError(
            f"{text!r} is not the name of a variable",
            "give letters, digits and _, such as NCCL_DEBUG",
        )
    if text in WORKER_VARIABLES:
        own_flag = f"--{text.lower().replace('_', '-')}"
        raise UnreadableError(
            f"{text} is a variable that clusterrun itself gives to each worker",
            f"use {own_flag}" if text.startswith("MASTER_") else "leave it out",
        )
    return text


def _whole_number(text: str) -> int | None:
    """Return the number that ``text`` spells in decimal digits alone; None if it spells none."""
    digits = text.strip()
    # Longer ones say nothing that a machine could do, and int() refuses thousands of digits.
    plain = digits.isascii() and digits.isdigit() and len(digits) < 10
    return int(digits) if plain else None
