"""Nodes join before the job begins: which have, which may not, which are missing, and when to begin."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterrun.bounds import MAX_WORKERS, as_line, counted
from clusterrun.cpuset import number_ranges
from clusterrun.job.job import MAIN
from clusterrun.loop import NEVER
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import Hello, Refusal
from clusterrun.policy.notices import MAX_NAMES, listed, process, shortened, two_values
from clusterrun.policy.settings import RendezvousSettings

SECONDS_TO_FIRST_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0

SECONDS_TO_SETTLE = 0.2
"""How long a complete world waits for connections without a ``Hello``, so that one node too many
is found before the workers start."""

SECONDS_BETWEEN_STARTS = 5.0
"""Agents that first tried to connect within this time may belong to one start of the job."""

SAME_COMMAND_HINT = "run the same command on every node, each with its own --node-rank"
VERSION = "version of clusterrun"
"""The key in ``Hello.must``."""
SAME_VERSION_HINT = "install the same version of clusterrun on every node"
RUN_ID_HINT = "give all nodes the same --run-id, or none"
MASTER_PORT_HINT = "if these are two jobs, give each its own --master-port"
TOO_MANY_NODES_HINT = "start one node fewer, or give a higher --nnodes"


class Rejection(Struct, frozen=True):
    """Why a node is refused, or why the whole job cannot begin."""

    text: str
    """What a refused node prints."""
    hint: str
    notice: str | None = None
    """What node 0 prints after the refused node's name; None: the text; "": nothing."""
    refusal: Refusal = Refusal.GIVE_UP


NO_WORKER = Rejection(
    "no node has a worker of the main program",
    "give the services fewer GPUs, or add gpus_per_worker: 0 at the top level",
)

STALE_AGENT = Rejection(
    "another clusterrun, started later on this host, has replaced this node in the job",
    "",
    "another clusterrun, started later on its host, has replaced it in the job",
)
"""The agent is left over from an earlier start of the job."""


def rejection(settings: RendezvousSettings, own: Hello, joiner: Hello) -> Rejection | None:
    """Return why ``joiner`` does not belong to this job; None if it may."""
    who, run_id = process(joiner), settings.job.join.run_id
    if joiner.identity == own.identity:
        return Rejection("", "", "", Refusal.SELF_CONNECTION)
    if joiner.user_id != own.user_id:
        text = (
            f"{settings.endpoint} belongs to a job of user {own.user_id}, {who} runs as user"
            f" {joiner.user_id}"
        )
        notice = f"it runs as user {joiner.user_id}, this job as user {own.user_id}"
        return Rejection(text, MASTER_PORT_HINT, notice, Refusal.TRY_NEXT_PORT)
    if joiner.run_id not in {"", run_id}:
        other = shortened(joiner.run_id)
        text = (
            f'{settings.endpoint} belongs to another job: its run id is "{shortened(run_id)}",'
            f' that of {who} is "{other}"'
        )
        notice = f'it belongs to another job, run id "{other}"'
        hint = MASTER_PORT_HINT if own.run_id else RUN_ID_HINT
        return Rejection(text, hint, notice, Refusal.TRY_NEXT_PORT)
    return None


def mismatch(settings: RendezvousSettings, own: Hello, joiner: Hello) -> Rejection | None:
    """Return how a joining node disagrees with node 0; None if it does not. Also applies to a running job."""
    if name := first_difference(own.must, joiner.must):
        hint = SAME_VERSION_HINT if name == VERSION else _same_command(settings)
        return Rejection(two_values(name, own, joiner), hint)
    if not _fits_programs(settings, joiner):
        text = f"{process(joiner)} has different programs from this job"
        return Rejection(text, _same_command(settings))
    if joiner.rank == 0:
        # It is node 0 of another job with the same options, checking that no other node 0 runs.
        return same_rank(settings, 0, own, joiner, is_own=True)
    return None


def _fits_programs(settings: RendezvousSettings, joiner: Hello) -> bool:
    """Return whether a joining node runs only programs of this job, with as many ports as workers."""
    if not settings.job.services:
        return joiner.workers > 0 and not joiner.programs
    names = [each.name for each in joiner.programs]
    of_main = next((len(each.ports) for each in joiner.programs if each.name == MAIN), 0)
    known = {MAIN, *(each.name for each in settings.job.services)}
    has_ports = all(0 < len(each.ports) <= MAX_WORKERS for each in joiner.programs)
    is_known = known.issuperset(names) and len({*names}) == len(names)
    return has_ports and is_known and of_main == joiner.workers


def failed_check(joiner: Hello) -> Rejection:
    """Return the rejection of a node that fails its check."""
    fails = f"fails its check: {joiner.fault}"
    text, notice = as_line(f"{process(joiner)} {fails}"), as_line(f"it {fails}")
    return Rejection(text, "", notice, Refusal.CHECK_FAILED)


def same_rank(
    settings: RendezvousSettings, rank: int, member: Hello, joiner: Hello, *, is_own: bool
) -> Rejection:
    """Return the mismatch of two nodes with the same rank; ``is_own``: the member is node 0."""
    if is_own and member.rank is None:
        text = (
            f"{process(joiner)} has node rank 0, but {settings.endpoint} is an address of"
            f" {process(member)}"
        )
        return Rejection(text, "give --node-rank 0 to the machine that --master-addr names")
    they = f"{process(member)} and {process(joiner)}"
    if settings.job.tasks is not None:
        return Rejection(f"two tasks have rank {rank}: {they}", _same_command(settings))
    text = f"two nodes have node rank {rank}: {they}"
    return Rejection(text, "give each node its own --node-rank")


def _same_command(settings: RendezvousSettings) -> str:
    """Return the hint to start all agents with the same options and different ranks."""
    tasks = settings.job.tasks
    return SAME_COMMAND_HINT if tasks is None else f"start all tasks at once:\n  {tasks.all_tasks}"


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first key whose values differ; "" if none do."""
    if one == other:
        # The usual case, kept cheap for large jobs.
        return ""
    names = [*one, *(name for name in other if name not in one)]
    return next((name for name in names if one.get(name) != other.get(name)), "")


class Gathering:
    """The nodes that have joined a job that has not begun; found in constant time by rank, agent or host."""

    def __init__(
        self, settings: RendezvousSettings, members: Members, began: float, *, has_token: bool
    ) -> None:
        """Begin with node 0's own agent.

        Args:
            settings: node 0's.
            members: has node 0's own agent.
            began: now.
            has_token: joining nodes have proved that they hold the job's token.

        """
        self.settings = settings
        self.has_token = has_token
        self.callers = 0
        """Open connections that have not sent a ``Hello``."""
        self.has_warned = False
        """A warning about a disagreement was printed."""
        self.next_notice = began + SECONDS_TO_FIRST_NOTICE
        self._members = members
        self._began = began
        self._complete_at = self._enough_at = NEVER
        """When all nodes had joined, and when enough had to begin without the others."""
        self._by_rank = {0: members.own}
        self._by_agent: dict[str, Node] = {}
        self._by_host: dict[tuple[str, str], list[Node]] = {}
        self.failed_checks: set[tuple[str, int | None]] = set()
        """Host and rank of each node that has failed its check, so a second attempt is not counted."""
        self._update_deadlines(began)

    # Which nodes have joined.

    @property
    def count(self) -> int:
        return len(self._members.by_connection)

    def find_agent(self, identity: str) -> Node | None:
        """Return the member with this ``Hello.identity``; never node 0's own."""
        return self._by_agent.get(identity)

    def admit(self, node: Node, at: float) -> None:
        self._members.add(node)
        if node.hello.rank is not None:
            self._by_rank[node.hello.rank] = node
        self._by_agent[node.hello.identity] = node
        self._forget_failed_check(node.hello)
        self._by_host.setdefault((node.address, node.hello.host), []).append(node)
        self._update_deadlines(at)

    def _forget_failed_check(self, joiner: Hello) -> None:
        """Expect no other node for one that has failed its check and now joins, or has another's rank."""
        own = {(joiner.host, joiner.rank)}
        if joiner.rank is not None:
            own |= {each for each in self.failed_checks if each[1] == joiner.rank}
        self.failed_checks -= own

    def remove(self, node: Node, at: float) -> None:
        """Remove a member; its node is expected again."""
        self._members.remove(node)
        rank = node.hello.rank
        if rank is not None and self._by_rank.get(rank) is node:
            del self._by_rank[rank]
        del self._by_agent[node.hello.identity]
        self._by_host[node.address, node.hello.host].remove(node)
        self._update_deadlines(at)

    def add_failed_check(self, joiner: Hello, at: float) -> bool:
        """Stop expecting a node that fails its check; return whether the job may begin without it.

        It may not begin without node 0, or if fewer than the minimum remain.
        """
        self.failed_checks.add((joiner.host, joiner.rank))
        self._update_deadlines(at)
        last_call = self.settings.job.last_call
        fewest = self.settings.nodes if last_call is None else last_call.minimum
        may_be_enough = self.settings.nodes - len(self.failed_checks) >= fewest
        return may_be_enough and joiner is not self._members.own.hello

    def by_rank(self) -> list[Node]:
        """Return all members by node rank; the ranks of missing nodes are skipped."""
        free = (rank for rank in range(self.settings.nodes) if rank not in self._by_rank)
        taken = {node: rank for rank, node in self._by_rank.items()}
        nodes = self._members.by_connection.values()
        ranks = {each: taken[each] if each in taken else next(free) for each in nodes}
        return sorted(ranks, key=ranks.__getitem__)

    def _update_deadlines(self, at: float) -> None:
        last_call = self.settings.job.last_call
        is_enough = last_call is not None and self.count >= last_call.minimum
        is_complete = self.count + len(self.failed_checks) >= self.settings.nodes
        self._complete_at = at if is_complete else NEVER
        # As in torchrun, the last call is not extended by each node that joins.
        self._enough_at = min(at, self._enough_at) if is_enough else NEVER

    # Which nodes may not join.

    def conflict(self, joiner: Hello) -> Rejection | None:
        """Return why no rank is free for a joining node; None if one is."""
        nodes, rank = self.settings.nodes, joiner.rank
        if rank is not None and rank >= nodes:
            own = "node rank" if self.settings.job.tasks is None else "rank"
            ranks = f"the ranks of {nodes} {self._unit}s are 0-{nodes - 1}"
            text = f"{process(joiner)} has {own} {rank}, but {ranks}"
            return Rejection(text, _same_command(self.settings))
        if rank is not None and (holder := self._by_rank.get(rank)):
            is_own = holder is self._members.own
            return same_rank(self.settings, rank, holder.hello, joiner, is_own=is_own)
        if self.count == nodes:
            joined = listed(process(each.hello) for each in self._members.by_connection.values())
            called = f"{nodes + 1} nodes have connected: {joined} and {process(joiner)}"
            return Rejection(f"nnodes is {nodes}, but {called}", TOO_MANY_NODES_HINT)
        return None

    def stale_agent(self, joiner: Node) -> Node | None:
        """Return which of the joining node and a member of the same rank is left over; None if none is.

        An agent that never reached node 0 does not learn that node 0 has ended, and tries to connect
        until its timeout. It would be one node too many in the job that its user starts next. It runs
        on the same host, by name and address (any agent can send any name), and first tried to connect
        well before this node 0 began and well before the other agent.
        """
        # An agent that is not early may have been started together with node 0.
        started = min(joiner.called_at, self._began)
        for other in self._same_node(joiner):
            is_early = other.called_at < self._began - SECONDS_BETWEEN_STARTS
            ahead = started - (other.called_at if is_early else self._began)
            if abs(ahead) > SECONDS_BETWEEN_STARTS:
                return other if ahead > 0 else joiner
        return None

    def _same_node(self, joiner: Node) -> Iterable[Node]:
        """Return the members on the joining node's host that have its rank; all of them if it has none."""
        there = self._by_host.get((joiner.address, joiner.hello.host), ())
        rank = joiner.hello.rank
        return there if rank is None else [each for each in there if each.hello.rank == rank]

    # When to begin, or to give up.

    @property
    def due(self) -> float:
        return min(self.next_notice, self.times_out_at, self.starts_at)

    @property
    def starts_at(self) -> float:
        """When the job begins, if nothing happens until then."""
        last_call = self.settings.job.last_call
        last_call_ends = NEVER if last_call is None else self._enough_at + last_call.timeout
        settling = SECONDS_TO_SETTLE if self.callers else 0.0
        return min(self._complete_at, last_call_ends) + settling

    @property
    def times_out_at(self) -> float:
        """When the job ends because nodes are missing; NEVER if they are not needed.

        If node 0 fails its check this is in the past.
        """
        if self._members.own.hello.fault:
            return self._began
        timeout = self.settings.job.join.rdzv_timeout
        return self._began + timeout if self._enough_at == NEVER else NEVER

    # Messages.

    def progress(self, now: float) -> str:
        """Return "2 of 4 nodes have joined: n0, n1; waiting for n2, n3 (30 s of 600 s)"."""
        settings, joined = self.settings, f"{self._counted} have joined: {self._joined}"
        last_call = settings.job.last_call
        if last_call is not None and self._enough_at != NEVER:
            seconds = f"{self.starts_at - now:.0f} s more for {self._missing}"
            return f"{joined}; waiting {seconds} (the minimum is {last_call.minimum})"
        spent = f"{now - self._began:.0f} s of {settings.job.join.rdzv_timeout:g} s"
        exports = f"; {settings.exports}" if settings.exports else ""
        return f"{joined}; waiting for {self._missing} ({spent}){exports}"

    def starts_without(self) -> str:
        """Return the notice at the end of the last call."""
        return f"starting with {self._counted}: {self._joined}; without {self._missing}"

    def timeout_error(self, refused: Sequence[str]) -> Rejection:
        """Return the error of a job whose nodes did not all join in time, and what to try."""
        settings = self.settings
        within = f"within {settings.job.join.rdzv_timeout:g} s"
        text = f"{self._counted} joined {within}: {self._joined}; missing: {self._missing}"
        hint = [f"refused meanwhile: {each}" for each in refused[:MAX_NAMES]]
        if settings.exports:
            hint.append(f"if this is one node: {settings.exports}")
        if settings.job.tasks is None:
            hint.append(f"run the same command on every node; each must reach {settings.endpoint}")
        else:
            hint.append(f"{_same_command(settings)}\neach must reach {settings.endpoint}")
        hint.append("to wait longer, give --rdzv-timeout SECONDS")
        return Rejection(text, "\n".join(hint))

    @property
    def _unit(self) -> str:
        return self.settings.job.agent_unit

    @property
    def _counted(self) -> str:
        return f"{self.count} of {self.settings.nodes} {self._unit}s"

    @property
    def _missing(self) -> str:
        """The nodes that have not joined, or their number if that is all that is known."""
        return self._missing_names() or counted(self.settings.nodes - self.count, self._unit)

    def _missing_names(self) -> str:
        hosts, nodes = self.settings.hosts, self.settings.nodes
        hellos = [each.hello for each in self._members.by_connection.values()]
        missing = [rank for rank in range(nodes) if rank not in self._by_rank]
        if len(self._by_rank) == len(hellos) and len(hosts) == nodes:
            return listed(hosts[rank] for rank in missing)
        if hosts:
            joined = {_short(hello.host) for hello in hellos}
            return listed(host for host in hosts if _short(host) not in joined)
        if all(hello.rank is not None for hello in hellos):
            what = "node rank" if self.settings.job.tasks is None else "task"
            return f"{what}{'s' if len(missing) > 1 else ''} {', '.join(number_ranges(missing))}"
        return ""

    @property
    def _joined(self) -> str:
        ranks = {node: rank for rank, node in self._by_rank.items()}
        # Members without a rank come last, in the order of joining.
        nodes = self._members.by_connection.values()
        order = sorted(nodes, key=lambda each: ranks.get(each, self.settings.nodes))
        return listed(each.hello.host for each in order)


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]
