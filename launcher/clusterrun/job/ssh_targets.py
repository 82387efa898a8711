"""The hosts of ``--launcher ssh``."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import ListedHosts, by_name
from clusterrun.job.job import Job
from clusterrun.job.options import NodeLauncher
from clusterrun.job.sources import ENV_VARIABLE, CommandLine, Layer, find, value_of
from clusterrun.job.values import Endpoint


class SshTargets(Struct, frozen=True):
    """The hosts on which ssh starts agents."""

    launcher: Setting[NodeLauncher]
    """``NodeLauncher.SSH`` with its origin."""
    hosts: tuple[str, ...]
    """In the order of ranks."""
    slots: Mapping[str, int]
    """Numbers of workers by host, from a hostfile; empty if an option sets them."""
    options: tuple[str, ...]
    """Options for ssh(1)."""

    def check(self, job: Job) -> None:
        """Check that the job can be started on other hosts.

        Raises:
            UsageError: the job depends on this process or its host.

        """
        where = self.launcher.origin
        if job.starting.exec:
            raise UsageError(
                f"{job.origin('exec')} and {where} can't be used together", "remove one"
            )
        if job.script.is_standard_input:
            raise UsageError(
                f"{where} is ssh, and a script on standard input ({job.script.name}) can't reach the"
                " hosts",
                "save it to a file, and give the file",
            )
        for name, value in job.env.items():
            origin = job.origin(f"env.{name}")
            if "\n" in value and origin in {"--env", ENV_VARIABLE, "PET_ENV"}:
                raise UsageError(
                    f"{origin}: {name} contains a line break, and can't be passed to other hosts this way",
                    "set it in a job file (--config), under env",
                )


def find_ssh_targets(
    launcher: Setting[NodeLauncher],
    sources: Sequence[Layer],
    listed: ListedHosts | None,
    line: CommandLine,
    called: str,
) -> SshTargets:
    """Return the hosts of a job with ``--launcher ssh``.

    Raises:
        UsageError: no hosts are listed, or an option conflicts with the list.

    """
    if called == "torchrun":
        raise UsageError(
            f"{launcher.origin}: torchrun has no such launcher",
            "use clusterrun instead of torchrun",
        )
    if listed is None:
        raise UsageError(
            f"{launcher.origin} is ssh, but no hosts are listed",
            f"list them:\n  {line.quoted('--hosts', 'HOST,HOST')}",
        )
    if rank := find("node_rank", sources):
        raise UsageError(
            f"{rank.origin}: with --launcher ssh, ranks follow the list of hosts",
            "remove it; the first host in the list has rank 0",
        )
    _check_first(listed.hosts, find("rdzv_endpoint", sources) or find("master_addr", sources))
    counting = {"nproc_per_node", "devices"}
    has_count = any(counting & source.keys() for source in sources)
    return SshTargets(
        launcher=launcher,
        hosts=listed.hosts.value,
        slots={} if has_count else {name: it.value for name, it in listed.slots.items()},
        options=value_of("ssh_options", sources).value,
    )


def _check_first(hosts: Setting[tuple[str, ...]], address: Setting[str] | None) -> None:
    """Check that the address of node 0 is not that of another host in the list."""
    if address is None:
        return
    names = [host.rpartition("@")[2] for host in hosts.value]
    found = by_name(names, Endpoint.parse(address.value).host)
    if found and 0 not in found:
        raise UsageError(
            f"{address.origin} is {address.value}, but node 0 is {names[0]}, the first host of"
            f" {hosts.origin}",
            f"put {hosts.value[found[0]]} first",
        )
