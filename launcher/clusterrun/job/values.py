"""The kinds of option values: how a text is read, and the error if it is wrong.

Optional types are for options without a default.
"""

import re
import signal
from collections.abc import Iterable, Mapping
from enum import Enum, IntFlag
from pathlib import Path
from typing import Annotated, Self, TypeVar

from msgspec import Struct

from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.declarations import SWITCH, Value
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.nested_launches import WORKER_VARIABLES
from clusterrun.job.suggestions import did_you_mean, did_you_mean_file
from clusterrun.signals import FORWARDED_SIGNALS

EnumT = TypeVar("EnumT", bound=Enum)


# Words


def choice(words: type[EnumT], what: str, others: Mapping[str, EnumT] | None = None) -> Value:
    """Return the kind of value that is one of ``words``; messages call it ``what``: "a NUMA binding".

    ``others`` are words of other launchers that are accepted but not shown.
    """
    known = [str(each.value) for each in words]

    def read(text: str) -> EnumT:
        if others and text in others:
            return others[text]
        if text not in known:
            hint = f"give one of {', '.join(known)}"
            raise UsageError(f"{text!r} is not {what}", did_you_mean(text, known) or hint)
        return words(text)

    return Value(read, "|".join(known))


MAX_RUN_ID_BYTES = 200
"""File systems allow 255 bytes in the name of a folder, which has the run id and a suffix."""

MAX_ROLE_LENGTH = 255
"""Characters. Nodes send the name to each other."""


def _run_id(text: str) -> str:
    if not text or text in {".", ".."} or "/" in text or not text.isprintable():
        raise UsageError(
            f"{text!r} can't be a run id, which also names a folder", "give a word without a /"
        )
    if len(text.encode()) > MAX_RUN_ID_BYTES:
        raise UsageError(
            f"{text[:20]!r}... has {len(text.encode())} bytes, too many for the name of a folder",
            f"give a name of at most {MAX_RUN_ID_BYTES} bytes",
        )
    return text


def _role(text: str) -> str:
    if not text or not text.isprintable() or len(text) > MAX_ROLE_LENGTH:
        raise UsageError(
            f"{text[:MAX_ROLE_LENGTH]!r} can't name a role", "give a word, such as trainer"
        )
    return text


def _preload(text: str) -> str | tuple[str, ...]:
    if text in {"auto", "none"}:
        return text
    if text == "all":
        raise UsageError(
            "all is not a choice any more",
            "list the modules; -v shows which ones each worker imports itself",
        )
    modules = tuple(module.strip() for module in text.split(","))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(
                f"{module!r} is not the name of a module",
                "give auto, none, or modules such as torch,numpy",
            )
    return modules


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} has no = in it", "give NAME=VALUE, such as NCCL_DEBUG=INFO")
    return variable_name(name), value


def variable_name(text: str) -> str:
    """Return the name of a variable that a job may set for its workers.

    Raises:
        UsageError: it is not a name, or clusterrun sets the variable itself.

    """
    if not (text.isascii() and text.isidentifier()):
        raise UsageError(
            f"{text!r} is not the name of a variable",
            "give letters, digits and _, such as NCCL_DEBUG",
        )
    if text in WORKER_VARIABLES:
        own_flag = f"--{text.lower().replace('_', '-')}"
        raise UsageError(
            f"{text} is a variable that clusterrun sets for each worker",
            f"give {own_flag}" if text.startswith("MASTER_") else "remove it",
        )
    return text


def _local_rank_argument(text: str) -> str:
    if text in {"local-rank", "local_rank"}:
        return text
    try:
        return "local-rank" if SWITCH.read(text) else ""
    except UsageError:
        raise UsageError(
            f"{text!r} is not an argument for the local rank",
            "give local-rank, which torch 2 passes, or local_rank, which torch 1 passed",
        ) from None


def _shell_command(text: str) -> str:
    if not text.strip():
        raise UsageError("the command is empty", "give a command for a shell")
    return text


def _command(text: str) -> tuple[str, ...]:
    from shlex import split

    try:
        words = tuple(split(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a command: {error}", "quote its words as for a shell"
        ) from None
    if not words:
        raise UsageError("the command is empty", "give a program and its arguments")
    return words


def _ssh_options(text: str) -> tuple[str, ...]:
    words = _command(text)
    if not words[0].startswith("-"):
        raise UsageError(
            f"{text!r} is not a list of options for ssh", "give it as in '-p 2222 -J gate'"
        )
    return words


def _joined_words(words: Iterable[str]) -> str:
    from shlex import join

    return join(words)


Name = Annotated[str, Value(str, "NAME")]
RunId = Annotated[str, Value(_run_id, "ID")]
Role = Annotated[str, Value(_role, "NAME")]
Preload = Annotated[str | tuple[str, ...], Value(_preload, "auto|none|MODULE,...")]
"""``auto``, ``none``, or names of modules."""
Variables = Annotated[tuple[tuple[str, str], ...], Value(_setting, "NAME=VALUE", repeated=True)]
LocalRankArgument = Annotated[
    str, Value(_local_rank_argument, "[=local-rank|local_rank]", implied="true")
]
"""The argument's name without dashes; "" if none is passed."""
ShellCommand = Annotated[str, Value(_shell_command, "COMMAND", join=_joined_words)]
Command = Annotated[tuple[str, ...], Value(_command, "COMMAND", join=_joined_words)]
SshOptions = Annotated[tuple[str, ...], Value(_ssh_options, "OPTIONS", join=_joined_words)]


# Numbers


def number(
    what: str, lowest: int = 0, highest: int = 10**9, metavar: str = "N", hint: str = ""
) -> Value:
    """Return the kind of value that is an integer from ``lowest`` to ``highest``.

    Messages call it ``what``, such as "a port".
    """
    bounds = f"from {lowest} to {highest}" if highest < 10**9 else f"from {lowest}"

    def read(text: str) -> int:
        found = whole_number(text)
        if found is None or not lowest <= found <= highest:
            raise UsageError(f"{text!r} is not {what}", hint or f"give a number {bounds}")
        return found

    return Value(read, metavar)


def whole_number(text: str) -> int | None:
    """Return the number that ``text`` has in decimal digits; None for any other text."""
    digits = text.strip()
    # int() raises for thousands of digits.
    plain = digits.isascii() and digits.isdigit() and len(digits) < 10
    return int(digits) if plain else None


class NodeRange(Struct, frozen=True):
    """A number of nodes, ``N`` or ``MIN:MAX``."""

    minimum: int
    maximum: int

    @classmethod
    def parse(cls, text: str) -> Self:
        low, _, high = text.partition(":")
        minimum, maximum = whole_number(low), whole_number(high or low)
        if not minimum or not maximum or minimum > maximum:
            raise UsageError(
                f"{text!r} is not a number of nodes", "give a number from 1, or MIN:MAX"
            )
        return cls(minimum, maximum)

    def __str__(self) -> str:
        if self.minimum == self.maximum:
            return str(self.maximum)
        return f"{self.minimum}:{self.maximum}"


class RankSet(Struct, frozen=True):
    """A list of ranks such as ``0,8-15``; not all need to exist."""

    ranges: tuple[tuple[int, int], ...]
    """The first and the last rank of each range."""

    @property
    def lowest(self) -> int:
        return min(first for first, _ in self.ranges)

    def __contains__(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges
        )


class WorkerCount(Enum):
    """A number of workers per node that depends on the machine."""

    PER_GPU = "per-gpu"
    """The default: one per visible GPU, or one."""

    AUTO = "auto"
    """``auto``, as with torchrun: one per visible GPU, or one per CPU."""

    GPU = "gpu"
    """``gpu``: one per visible GPU; an error without GPUs."""

    CPU = "cpu"
    """``cpu``: one per CPU that the launcher may use."""


def _workers(text: str) -> int | WorkerCount:
    words = {"auto": WorkerCount.AUTO, "gpu": WorkerCount.GPU, "cpu": WorkerCount.CPU}
    # torchrun's xpu means Intel's GPUs, which are counted like any others.
    count = (words | {"xpu": WorkerCount.GPU}).get(text) or whole_number(text)
    if not count:
        hint = "give a number from 1, or auto, gpu or cpu"
        raise UsageError(f"{text!r} is not a number of workers", did_you_mean(text, words) or hint)
    return count


def _port(text: str) -> int | None:
    found = whole_number(text)
    if found is None or found > 65535:
        raise UsageError(
            f"{text!r} is not a port", "give a number from 1 to 65535, or 0 to have one chosen"
        )
    return found or None


MAX_WAIT_SECONDS = 604_800.0
"""A week. The kernel's timers do not accept infinity."""

SECONDS_PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

MIN_HEARTBEAT_TIMEOUT = 0.5
"""Seconds. The kernel may need that long to retransmit a lost packet."""


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1
    if not 0 <= found <= MAX_WAIT_SECONDS:
        hint = "give a number of seconds, such as 25 or 0.5"
        if unit := re.fullmatch(r"([0-9]{1,5}) ?(s|min|m|h|d)", text.strip()):
            found = int(unit[1]) * SECONDS_PER_UNIT[unit[2]]
            hint = f"give seconds: {found}"
        if found > MAX_WAIT_SECONDS:
            hint = f"give at most {MAX_WAIT_SECONDS:.0f}, a week in seconds"
        raise UsageError(f"{text!r} is not a time in seconds", hint)
    return found


def _heartbeat_timeout(text: str) -> float:
    found = _seconds(text)
    if found < MIN_HEARTBEAT_TIMEOUT:
        raise UsageError(
            f"{text!r} is too short to tell a lost node from a busy one",
            f"give at least {MIN_HEARTBEAT_TIMEOUT:g}",
        )
    return found


def _exit_codes(text: str) -> tuple[int, ...]:
    codes: set[int] = set()
    for part in text.split(","):
        first, last = _range(part)
        if not first or not last or not first <= last <= 255:
            raise UsageError(
                f"{part!r} is not the exit code of a failure",
                "give numbers from 1 to 255 and ranges of them, such as 3,5-7",
            )
        codes.update(range(first, last + 1))
    return tuple(sorted(codes))


def _ranks(text: str) -> RankSet:
    found = []
    for part in text.split(","):
        first, last = _range(part)
        if first is None or last is None or first > last:
            raise UsageError(
                f"{part!r} is not a rank", "give numbers from 0 and ranges of them, such as 0,8-15"
            )
        found.append((first, last))
    return RankSet(tuple(found))


def _range(text: str) -> tuple[int | None, int | None]:
    first, dash, last = text.partition("-")
    return whole_number(first), whole_number(last if dash else first)


def _suspend_signal(text: str) -> int:
    names = {each.name: int(each) for each in signal.Signals}
    name = text.strip().upper()
    found = names.get(name) or names.get(f"SIG{name}") or whole_number(text)
    # Agents already use other signals.
    if found is None or found not in FORWARDED_SIGNALS:
        raise UsageError(
            f"{text!r} is not a signal that can ask for a suspension", "give USR1 or USR2"
        )
    return found


Nodes = Annotated[NodeRange, Value(NodeRange.parse, "N|MIN:MAX")]
Workers = Annotated[int | WorkerCount, Value(_workers, "N|auto|gpu|cpu")]
RankOfNode = Annotated[int | None, number("the rank of a node", metavar="R")]
Rank = Annotated[int | None, number("the rank of a worker", metavar="RANK")]
Ranks = Annotated[RankSet | None, Value(_ranks, "RANKS")]
Port = Annotated[int | None, Value(_port, "PORT")]
"""None for 0, which means that a port is chosen, as with torchrun."""
SECONDS = Value(_seconds, "SECONDS")
Seconds = Annotated[float, SECONDS]
HeartbeatTimeout = Annotated[float, Value(_heartbeat_timeout, "SECONDS")]
ExitCodes = Annotated[tuple[int, ...], Value(_exit_codes, "CODES")]
"""Sorted and unique."""
SignalNumber = Annotated[int | None, Value(_suspend_signal, "SIGNAL")]


# Hosts and devices


LOOPBACK = "127.0.0.1"
"""MASTER_ADDR on a single node, whose host name may not resolve."""


def is_link_local(address: str) -> bool:
    """Return whether the address is IPv6 and in fe80::/10 (RFC 4291), with or without a zone."""
    return ":" in address and address[:3].lower() in {"fe8", "fe9", "fea", "feb"}


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address."""
    return address == "::1" or address.startswith("127.")


class Endpoint(Struct, frozen=True):
    """A host and perhaps a port."""

    host: str
    """An IPv6 address has no brackets."""
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HOST``, ``HOST:PORT``, ``IPV6``, ``[IPV6]`` or ``[IPV6]:PORT``.

        Raises:
            ValueError: the text is none of these.

        """
        host, port = _split(text)
        if not host or not host.isprintable() or any(sign in " []/" for sign in host):
            raise ValueError(text)
        if not port:
            return cls(host, None)
        digits = port.removeprefix(":")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 6) or int(digits) > 65535:
            raise ValueError(text)
        return cls(host, int(digits))

    def __str__(self) -> str:
        """Return "HOST", "HOST:PORT" or "[IPV6]:PORT"."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split(text: str) -> tuple[str, str]:
    """Return the host, and the port with its colon or ""."""
    if text.startswith("["):
        host, end, port = text[1:].partition("]")
        # ":?" is not a port, so it causes an error.
        return host, port if end and port[:1] in {"", ":"} else ":?"
    if text.count(":") > 1:
        return text, ""
    host, colon, port = text.partition(":")
    return host, colon + port


def _address(text: str) -> str:
    try:
        found = Endpoint.parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a host", "give a host name or an IP address") from None
    if found.port is not None:
        raise UsageError(
            f"{text!r} has a port in it",
            f"give {found.host}, and add --master-port {found.port}",
        )
    return found.host


def _endpoint(text: str) -> str:
    try:
        return str(Endpoint.parse(text))
    except ValueError:
        raise UsageError(
            f"{text!r} is not an endpoint", "give HOST, HOST:PORT or [IPV6]:PORT"
        ) from None


def _hosts(text: str) -> tuple[str, ...]:
    from clusterrun.job.hosts import host_list_error, read_hosts, shown

    found = read_hosts(text.replace(" ", ""))
    if not all(found) or not found:
        raise host_list_error(text)
    seen: set[str] = set()
    for host in found:
        if host in seen:
            raise UsageError(f"{shown(text)} has {host} twice", "give each host once")
        seen.add(host)
    return found


MAX_DEVICES = 10_000
"""A larger number is a typing error, and a range of so many devices would fill the memory."""


def _devices(text: str) -> tuple[str, ...]:
    hint = "give each device once, such as 0,2,5-7"
    found = [device for part in text.split(",") for device in _device_range(part.strip())]
    if not all(found):
        raise UsageError(f"{text!r} is not a list of devices", hint)
    if len(set(found)) < len(found):
        raise UsageError(f"{text!r} has a device twice", hint)
    return tuple(found)


def _device_range(text: str) -> list[str]:
    """Return the devices of one item of the list; one empty name if the item is wrong."""
    first, dash, last = text.partition("-")
    low, high = whole_number(first), whole_number(last)
    if text.startswith(("GPU-", "MIG-")) or (low is not None and not dash):
        return [text]
    if low is None or high is None or low > high or high >= MAX_DEVICES:
        return [""]
    return [str(each) for each in range(low, high + 1)]


class MappedGpu(Struct, frozen=True):
    """The NUMA node or CPUs of a GPU, as an entry of ``--numa-map`` sets them."""

    gpu: str
    """An index, a PCI address or a UUID."""
    place: int | CpuSet
    """The number of a NUMA node, or the CPUs near the GPU."""

    def __str__(self) -> str:
        """Return the entry as typed: ``0=node 1``."""
        return f"{self.gpu}={f'node {self.place}' if isinstance(self.place, int) else self.place}"


_MAP_HINT = (
    "write GPU=CPUS or GPU=node N, such as 0=node 1,1=0-3,8 or 0000:17:00.0=node 0, or a file"
)
_NODE = re.compile(r"node ?([0-9]{1,5})")


def _numa_map(text: str) -> tuple[MappedGpu, ...]:
    """Return the entries of a text, or of the file that it names.

    Entries are separated by commas, or by line breaks in a file, where a ``#`` begins a comment.
    """
    if "=" not in text:
        return _map_entries(_map_file(_path(text)), f"in {text}: ")
    return _map_entries(text, "")


def _map_file(name: str) -> str:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{name!r} can't be read: {why}", _MAP_HINT) from None
    return ",".join(line.partition("#")[0].strip() for line in lines)


def _map_entries(text: str, where: str) -> tuple[MappedGpu, ...]:
    pieces = [piece.strip() for piece in re.split(r"[,\n]", text) if piece.strip()]
    if not pieces:
        raise UsageError(f"{where}there are no entries", _MAP_HINT)
    if "=" not in pieces[0]:
        raise UsageError(f"{where}{pieces[0]!r} names no GPU", _MAP_HINT)
    found: dict[str, MappedGpu] = {}
    # Lists of CPUs also have commas: a comma separates entries only if an = follows.
    for part in re.split(r",(?=[^,]*=)", ",".join(pieces)):
        entry = _map_entry(part, where)
        if entry.gpu in found:
            raise UsageError(f"{where}GPU {entry.gpu} is listed twice", "remove one")
        found[entry.gpu] = entry
    return tuple(found.values())


def _map_entry(text: str, where: str) -> MappedGpu:
    gpu, _, place = (part.strip() for part in text.partition("="))
    if not gpu:
        raise UsageError(f"{where}{text!r} has no GPU before the =", _MAP_HINT)
    if node := _NODE.fullmatch(place):
        return MappedGpu(gpu, int(node[1]))
    try:
        cpus = CpuSet.parse(place)
    except ValueError:
        cpus = CpuSet()
    if not cpus:
        raise UsageError(f"{where}{place!r} is neither a list of CPUs nor node N", _MAP_HINT)
    return MappedGpu(gpu, cpus)


Address = Annotated[str | None, Value(_address, "HOST")]
"""A host name, or an IP address without brackets."""
EndpointText = Annotated[str | None, Value(_endpoint, "HOST[:PORT]")]
Hosts = Annotated[tuple[str, ...], Value(_hosts, "HOST,...")]
Devices = Annotated[tuple[str, ...], Value(_devices, "0,2,5-7")]
"""Numbers and UUIDs, in the order of the workers."""
NumaMap = Annotated[tuple[MappedGpu, ...], Value(_numa_map, "GPU=CPUS,...|FILE", completes="file")]


# Files


def _path(text: str) -> str:
    if not text:
        raise UsageError("the path is empty", "give the path of a file or folder")
    if text.startswith("~"):
        # If we made a folder "~", the user might type rm -r ~ to remove it.
        raise UsageError(f"{text!r} has a ~, which only a shell expands", "give the path in full")
    return text


def _file_path(text: str) -> str:
    if kind_of(_path(text)) is FileKind.FOLDER:
        raise UsageError(f"{text} is a folder", "give the path of a file")
    return text


def _captured_machine(text: str) -> Path:
    match kind_of(_path(text)):
        case FileKind.FILE | FileKind.FOLDER:
            return Path(text)
        case FileKind.OTHER:
            message = f"{text} is neither a folder nor a file"
        case FileKind.NOTHING:
            message = f"{text} does not exist"
    hint = did_you_mean_file(text) or "give a captured machine, a file or a folder"
    raise UsageError(message, hint)


def _new_capture(text: str) -> Path:
    if not _path(text).endswith(".json") or kind_of(text) is FileKind.FOLDER:
        raise UsageError(
            f"{text!r} is not the name of a JSON file", "give a name that ends in .json"
        )
    return Path(text)


FilePath = Annotated[str, Value(_path, "FILE", completes="file")]
FolderPath = Annotated[str | None, Value(_path, "DIR", completes="dir")]
NewFile = Annotated[str | None, Value(_file_path, "FILE", completes="file")]
CapturedMachine = Annotated[Path | None, Value(_captured_machine, "DIR|FILE", completes="file")]
NewCapture = Annotated[Path | None, Value(_new_capture, "FILE", completes="file")]


# Output


class Std(IntFlag):
    """The streams of a worker, as torchrun numbers them (elastic/multiprocessing/api.py)."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR


class StreamChoice(Struct, frozen=True):
    """The streams of all workers of a node, or of some by local rank, as with torchrun: ``3``, ``0:3,1:2``."""

    default: Std
    """The streams of workers that are not in ``by_local_rank``."""
    by_local_rank: Mapping[int, Std]

    def of(self, local_rank: int) -> Std:
        return self.by_local_rank.get(local_rank, self.default)

    def __bool__(self) -> bool:
        return any((self.default, *self.by_local_rank.values()))

    def __str__(self) -> str:
        """Return the choice as typed."""
        listed = [f"{rank}:{streams.value}" for rank, streams in self.by_local_rank.items()]
        return ",".join(listed) or str(self.default.value)


def _streams(text: str) -> StreamChoice:
    if "," not in text and ":" not in text:
        return StreamChoice(_std(text, text), {})
    named: dict[int, Std] = {}
    for part in text.split(","):
        rank_text, _, streams = part.partition(":")
        rank = whole_number(rank_text)
        if rank is None:
            raise _no_streams(part)
        if rank in named:
            raise UsageError(f"{text!r} names local rank {rank} twice", "remove one of them")
        named[rank] = _std(streams, part)
    return StreamChoice(Std.NONE, named)


def _std(streams: str, text: str) -> Std:
    found = whole_number(streams)
    if found is None or found > Std.ALL:
        raise _no_streams(text)
    return Std(found)


def _no_streams(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a choice of streams",
        "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or such a"
        " number for each local rank: 0:3,1:2",
    )


def _line_prefix(text: str) -> str:
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UsageError(f"{text!r} is more than one line", "remove line breaks")
    return text


def _line_filters(text: str) -> tuple[str, ...]:
    found = tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    if not all(found) or "\n" in text:
        raise UsageError(
            f"{text!r} has an empty text or a line break in it",
            "give texts such as error,warning; write ,, for a comma in a text",
        )
    return found


def _joined_streams(pairs: Iterable[str]) -> str:
    return ",".join(pairs).replace("=", ":")


def _joined_filters(texts: Iterable[str]) -> str:
    return ",".join(text.replace(",", ",,") for text in texts)


Streams = Annotated[StreamChoice | None, Value(_streams, "N|LOCALRANK:N,...", join=_joined_streams)]
LinePrefix = Annotated[str | None, Value(_line_prefix, "TEXT")]
LineFilters = Annotated[tuple[str, ...], Value(_line_filters, "TEXT,...", join=_joined_filters)]
"""Texts to search for; ``,,`` stands for a comma."""


# torchrun's options

UNSUPPORTED_BACKENDS = ("etcd", "etcd-v2", "etcd_v2")

BACKENDS = ("static", "c10d")
"""torchrun's backends that do not need a separate server."""

UNCATCHABLE_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)

QUOTES = " \t\n'\""


def _backend(text: str) -> str:
    if text in UNSUPPORTED_BACKENDS:
        raise UsageError(
            f"{text} needs a server of its own, but clusterrun has no such backend",
            "rendezvous on a node of the job instead:\n  --rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )
    if text not in BACKENDS:
        raise UsageError(
            f"{text!r} is not a rendezvous backend",
            did_you_mean(text, BACKENDS) or f"give {' or '.join(BACKENDS)}",
        )
    return text


def _configuration(text: str) -> tuple[tuple[str, str], ...]:
    """Split ``KEY=VALUE,KEY=VALUE`` as torchrun does, and drop quotes that the shell did not remove."""
    bare = text.strip(QUOTES)
    pairs = [pair.partition("=") for pair in bare.split(",")] if bare else []
    for key, equals, value in pairs:
        if not equals or not key.strip(QUOTES) or not value.strip(QUOTES):
            raise UsageError(
                f"{key + equals + value!r} is not KEY=VALUE",
                "give KEY=VALUE,KEY=VALUE, such as join_timeout=900",
            )
    return tuple((key.strip(QUOTES), value.strip(QUOTES)) for key, _, value in pairs)


def _signal_names(text: str) -> str:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = signal.Signals.__members__
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name!r} is not the name of a signal",
                did_you_mean(name, known) or "give names such as SIGTERM,SIGUSR1",
            )
        if known[name] in UNCATCHABLE_SIGNALS:
            raise UsageError(f"no program can handle {name}", "remove it")
    return ",".join(names)


def _plugin(text: str) -> str:
    if not text:
        raise UsageError("the name is empty", "remove it")
    return text


Backend = Annotated[str, Value(_backend, "static|c10d")]
Configuration = Annotated[tuple[tuple[str, str], ...], Value(_configuration, "KEY=VALUE,...")]
SignalNames = Annotated[str, Value(_signal_names, "NAMES")]
"""``SIGTERM,SIGUSR1``, as torchrun passes them to workers."""
Plugin = Annotated[str, Value(_plugin, "NAME")]
"""The name of a torchrun plugin."""
