"""Notices and errors of a node that can't connect to node 0."""

from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct

from clusterrun.errors import LauncherError, MachineError, RendezvousError
from clusterrun.job.declarations import Setting
from clusterrun.job.values import Endpoint
from clusterrun.network.addresses import Address
from clusterrun.network.handshake import VERSION, Fault, HandshakeFailed
from clusterrun.policy.messages import Refusal, Refused
from clusterrun.policy.settings import RendezvousSettings
from clusterrun.ports import port_option

NOT_CLUSTERRUN = "another program answers there, not clusterrun"

_SAME_VERSION = "install the same version of clusterrun on all nodes"
_SAME_PROOF = (
    "set the same CLUSTERRUN_TOKEN or --token-file on all nodes\n"
    "or, if another job uses that port, give each job its own port with {}"
)
_OTHER_PROGRAM = (
    "find it on that host with ss -ltnp, and stop it\nor give the job another port with {}"
)


def error_of(refused: Refused) -> LauncherError:
    """Return the error of a node that node 0 has refused, or of node 0 itself."""
    error = MachineError if refused.refusal is Refusal.CHECK_FAILED else RendezvousError
    return error(refused.text, refused.hint)


class DialProgress(Struct, frozen=True):
    """How far a node has got in connecting to node 0."""

    addresses: tuple[Address, ...]
    """Of node 0's name; () until it resolves."""
    lookup_error: str
    """Why the name does not resolve; "" before the first answer."""
    errors: Mapping[tuple[Address, int], str]
    """The last error of each address and port."""


def still_connecting_notice(
    settings: RendezvousSettings, progress: DialProgress, elapsed: str
) -> str:
    """Return the notice of a node that retries; ``elapsed`` is, for example, "30 s of 600 s"."""
    if progress.addresses:
        why = f"can't connect to {settings.first} at {_place(settings)} yet: {_errors(settings, progress)}"
    else:
        why = f"{settings.host} does not resolve yet: {_lookup_error(progress)}"
    exports = f"; {settings.exports}" if settings.exports else ""
    return f"{why} ({elapsed}){exports}"


def connect_timeout_error(
    settings: RendezvousSettings, progress: DialProgress, rank: int | None
) -> RendezvousError:
    """Return the error of the node ``rank`` after the timeout; None: a node without a rank."""
    within = f"within {settings.job.join.rdzv_timeout:g} s"
    one_node = f"if this is one node: {settings.exports}\n" if settings.exports else ""
    if not progress.addresses:
        return RendezvousError(
            f"{settings.host} did not resolve on this node {within}: {_lookup_error(progress)}",
            f"{one_node}set {_option(settings)} to a host name that every node can resolve,"
            f" or to {settings.first}'s IP address",
        )
    errors = _errors(settings, progress)
    return RendezvousError(
        f"could not connect to {settings.first} at {_place(settings)} {within}: {errors}",
        one_node + _hint(settings, progress, rank),
    )


def node_zero_silent_error(settings: RendezvousSettings) -> RendezvousError:
    """Return the error of a member that no longer receives anything from node 0."""
    return RendezvousError(
        f"{settings.first} at {_place(settings)} stopped responding before all"
        f" {settings.job.agent_unit}s had joined",
        f"see what clusterrun has printed {'on' if settings.job.tasks is None else 'in'} {settings.first}",
    )


def handshake_error(
    settings: RendezvousSettings, failure: HandshakeFailed
) -> RendezvousError | None:
    """Return the error of a failed handshake; None if the peer is not clusterrun."""
    place, option = settings.endpoint, port_option(settings.ports.origin)
    first, this = settings.first, f"this {settings.job.agent_unit}"
    match failure.fault:
        case Fault.NOT_CLUSTERRUN:
            return None
        case Fault.OTHER_VERSION:
            text = f"{first} at {place} speaks version {failure.version} of clusterrun's protocol"
            return RendezvousError(f"{text}, but {this} speaks version {VERSION}", _SAME_VERSION)
        case Fault.HAS_A_TOKEN:
            text = f"the job at {place} has a token, but {this} has none"
        case Fault.HAS_NO_TOKEN:
            text = f"the job at {place} has no token, but {this} has one"
        case Fault.WRONG_TOKEN:
            text = f"the job at {place} has a different token from {this}"
        case Fault.RELAYED:
            text = f"{first} at {place} is reached through another program on its host"
            how = "that program listens on the port and forwards the connection"
            return RendezvousError(f"{text}: {how}", _OTHER_PROGRAM.format(option))
        case _:
            assert_never(failure.fault)
    return RendezvousError(text, _SAME_PROOF.format(option))


def _place(settings: RendezvousSettings) -> Setting[str]:
    return Setting(settings.endpoint, settings.host.origin)


def _option(settings: RendezvousSettings) -> str:
    """Return the option that sets node 0's address."""
    return "--rdzv-endpoint" if settings.job.given.at_endpoint else "--master-addr"


def _lookup_error(progress: DialProgress) -> str:
    return progress.lookup_error or "no answer yet"


def _errors(settings: RendezvousSettings, progress: DialProgress) -> str:
    if not progress.errors:
        return "no answer yet"
    one_port = len(settings.ports.value) == 1
    return ", ".join(
        error
        if one_port and address.text == settings.host.value
        else f"{_address_text(address, None if one_port else port)}: {error}"
        for (address, port), error in progress.errors.items()
    )


def _address_text(address: Address, port: int | None) -> str:
    text = str(Endpoint(address.text, port))
    return f"{text} (this machine itself)" if address.is_loopback else text


def _hint(settings: RendezvousSettings, progress: DialProgress, rank: int | None) -> str:
    tasks = settings.job.tasks
    if NOT_CLUSTERRUN in progress.errors.values():
        check = "--nnodes" if tasks is None else tasks.all_tasks
        return (
            "the port may be another program's: set another one on all nodes with"
            f" {port_option(settings.ports.origin)}\n"
            f"or the job has started without this {settings.job.agent_unit}: check {check}"
        )
    if all(address.is_loopback for address in progress.addresses):
        return _loopback_hint(settings, progress.addresses[0].text)
    which = "the machine with that address" if rank is None else "node 0 (--node-rank 0)"
    start = f"start the same command on {which}"
    if tasks is not None:
        start = f"start all tasks at once:\n  {tasks.all_tasks}"
    return (
        f"{start}\nif it is already running there, a firewall may block the port, or the job has"
        f" started without this {settings.job.agent_unit}"
    )


def _loopback_hint(settings: RendezvousSettings, address: str) -> str:
    host, option = settings.host.value, _option(settings)
    if host == address:
        start = (
            "start it on this machine with --node-rank 0, or " if settings.job.tasks is None else ""
        )
        return (
            f"{host} is this machine, but {settings.first} does not run on it:\n"
            f"{start}set {option} to the address of {settings.first}'s machine"
        )
    return (
        f"on this node {host} resolves to {address}, which is this machine and not {settings.first}:\n"
        f"correct /etc/hosts, or set {option} to {settings.first}'s IP address"
    )
