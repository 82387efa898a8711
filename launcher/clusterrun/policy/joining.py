"""Nodes join before the job begins: who has come, who is missing, who may not join, and when to begin."""

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
"""How long a complete world waits for callers without a ``Hello``: one node too many should be
found before the workers start."""

SECONDS_BETWEEN_STARTS = 5.0
"""Agents that began to call within this time may belong to one start of the job."""

SAME_COMMAND_HINT = "run the same command on every node, each with its own --node-rank"
VERSION = "version of clusterrun"
"""Its name among the values that must be equal."""
SAME_VERSION_HINT = "install the same version of clusterrun on every node"
RUN_ID_HINT = "give all nodes the same --run-id, or none"
MASTER_PORT_HINT = "give each of two jobs its own --master-port"
TOO_MANY_NODES_HINT = "start one node fewer, or give a higher --nnodes"


class Rejection(Struct, frozen=True):
    """The newcomer does not belong to this job, which goes on waiting."""

    refusal: Refusal
    text: str
    """For the newcomer."""
    hint: str
    notice: str
    """For node 0, after the newcomer's name; "" for none."""


class Mismatch(Struct, frozen=True):
    """Nodes of this job contradict each other, or one fails its check, and it cannot begin."""

    text: str
    hint: str
    refusal: Refusal = Refusal.GIVE_UP

    @property
    def rejection(self) -> Rejection:
        """The same as a reason to refuse the newcomer alone."""
        return Rejection(self.refusal, self.text, self.hint, self.text)


NO_WORKER = Mismatch(
    "no node has a worker of the main program",
    "give the services fewer GPUs, or add gpus_per_worker: 0 at the top level",
)

REPLACED = Rejection(
    Refusal.GIVE_UP,
    "another clusterrun, started later on this host, has this node's place in the job",
    "",
    "another clusterrun, started later on its host, has its place",
)
"""An agent is left over from an earlier start."""


def rejection(settings: RendezvousSettings, own: Hello, newcomer: Hello) -> Rejection | None:
    """Return why ``newcomer`` is none of this job's nodes; None if it may be one."""
    who, run_id = process(newcomer), settings.job.join.run_id
    if newcomer.identity == own.identity:
        return Rejection(Refusal.SELF_CONNECTION, "", "", "")
    if newcomer.user_id != own.user_id:
        text = (
            f"{settings.place} belongs to a job of user {own.user_id}, {who} runs as user"
            f" {newcomer.user_id}"
        )
        notice = f"it runs as user {newcomer.user_id}, this job as user {own.user_id}"
        return Rejection(Refusal.TRY_NEXT_PORT, text, MASTER_PORT_HINT, notice)
    if newcomer.run_id not in {"", run_id}:
        other = shortened(newcomer.run_id)
        text = (
            f'{settings.place} belongs to another job: its run id is "{shortened(run_id)}",'
            f' that of {who} is "{other}"'
        )
        notice = f'it belongs to another job, run id "{other}"'
        hint = MASTER_PORT_HINT if own.run_id else RUN_ID_HINT
        return Rejection(Refusal.TRY_NEXT_PORT, text, hint, notice)
    return None


def mismatch(settings: RendezvousSettings, own: Hello, newcomer: Hello) -> Mismatch | None:
    """Return what of a newcomer contradicts node 0, also when the job runs."""
    if name := first_difference(own.must, newcomer.must):
        hint = SAME_VERSION_HINT if name == VERSION else _same_command(settings)
        return Mismatch(two_values(name, own, newcomer), hint)
    if not _fits_programs(settings, newcomer):
        text = f"{process(newcomer)} has different programs from this job"
        return Mismatch(text, _same_command(settings))
    if newcomer.rank == 0:
        # It is node 0 of another job with the same options, and only asks whether it is the only one.
        return same_rank(settings, 0, own, newcomer, is_own=True)
    return None


def _fits_programs(settings: RendezvousSettings, newcomer: Hello) -> bool:
    """Return whether a newcomer has workers of this job's programs, and of each as many as ports."""
    if not settings.job.services:
        return newcomer.workers > 0 and not newcomer.programs
    names = [each.name for each in newcomer.programs]
    of_main = next((len(each.ports) for each in newcomer.programs if each.name == MAIN), 0)
    known = {MAIN, *(each.name for each in settings.job.services)}
    has_ports = all(0 < len(each.ports) <= MAX_WORKERS for each in newcomer.programs)
    is_known = known.issuperset(names) and len({*names}) == len(names)
    return has_ports and is_known and of_main == newcomer.workers


def failed_check(newcomer: Hello) -> Rejection:
    """Return why a node may not work that fails its check."""
    fails = f"fails its check: {newcomer.fault}"
    return Rejection(
        Refusal.CHECK_FAILED, as_line(f"{process(newcomer)} {fails}"), "", as_line(f"it {fails}")
    )


def same_rank(
    settings: RendezvousSettings, rank: int, member: Hello, newcomer: Hello, *, is_own: bool
) -> Mismatch:
    """Return the mismatch of two nodes with one rank; ``is_own``: the member is node 0."""
    if is_own and member.rank is None:
        text = (
            f"{process(newcomer)} has node rank 0, but {settings.place} is an address of"
            f" {process(member)}"
        )
        return Mismatch(text, "give --node-rank 0 to the machine that --master-addr names")
    they = f"{process(member)} and {process(newcomer)}"
    if settings.job.tasks is not None:
        return Mismatch(f"two tasks have rank {rank}: {they}", _same_command(settings))
    text = f"two nodes have node rank {rank}: {they}"
    return Mismatch(text, "give each node its own --node-rank")


def _same_command(settings: RendezvousSettings) -> str:
    """Return what to type so that all agents have the same options, and a rank each."""
    tasks = settings.job.tasks
    return SAME_COMMAND_HINT if tasks is None else f"start all tasks at once:\n  {tasks.all_tasks}"


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name with two values; "" if there is none."""
    if one == other:
        # As for most newcomers of a large job.
        return ""
    names = [*one, *(name for name in other if name not in one)]
    return next((name for name in names if one.get(name) != other.get(name)), "")


class Gathering:
    """The nodes that have joined, found by rank, agent or host in the same time however many they are."""

    def __init__(
        self, settings: RendezvousSettings, members: Members, began: float, *, has_token: bool
    ) -> None:
        """Begin with node 0's own agent; ``has_token``: callers have proved that they hold the job's."""
        self.settings = settings
        self.has_token = has_token
        self.callers = 0
        """Connections without a ``Hello`` yet."""
        self.has_warned = False
        """A warning was printed of what should agree and does not."""
        self.next_notice = began + SECONDS_TO_FIRST_NOTICE
        self._members = members
        self._began = began
        self._complete_at = self._enough_at = NEVER
        """Since when all nodes have joined, and since when enough to begin without the others."""
        self._by_rank = {0: members.own}
        self._by_agent: dict[str, Node] = {}
        self._by_host: dict[tuple[str, str], list[Node]] = {}
        self.unfit: set[tuple[str, int | None]] = set()
        """Those that have failed their checks, by host and rank: one that calls again is the same."""
        self._note_count(began)

    # Who has joined.

    @property
    def count(self) -> int:
        return len(self._members.by_connection)

    def of_agent(self, identity: str) -> Node | None:
        """Return the member with this ``Hello.identity``; never node 0's own."""
        return self._by_agent.get(identity)

    def admit(self, node: Node, at: float) -> None:
        self._members.add(node)
        if node.hello.rank is not None:
            self._by_rank[node.hello.rank] = node
        self._by_agent[node.hello.identity] = node
        self._by_host.setdefault((node.address, node.hello.host), []).append(node)
        self._note_count(at)

    def remove(self, node: Node, at: float) -> None:
        """Remove a member, and wait for its node again."""
        self._members.remove(node)
        rank = node.hello.rank
        if rank is not None and self._by_rank.get(rank) is node:
            del self._by_rank[rank]
        del self._by_agent[node.hello.identity]
        self._by_host[node.address, node.hello.host].remove(node)
        self._note_count(at)

    def refuse_unfit(self, newcomer: Hello, at: float) -> bool:
        """Expect a node no more that fails its check; return whether enough others may come.

        No other can come in the place of node 0.
        """
        self.unfit.add((newcomer.host, newcomer.rank))
        self._note_count(at)
        last_call = self.settings.job.last_call
        fewest = self.settings.nodes if last_call is None else last_call.minimum
        may_be_enough = self.settings.nodes - len(self.unfit) >= fewest
        return may_be_enough and newcomer is not self._members.own.hello

    def in_order(self) -> list[Node]:
        """Return all members by node rank; if one has not joined, those after it move up."""
        free = (rank for rank in range(self.settings.nodes) if rank not in self._by_rank)
        taken = {node: rank for rank, node in self._by_rank.items()}
        nodes = self._members.by_connection.values()
        ranks = {each: taken[each] if each in taken else next(free) for each in nodes}
        return sorted(ranks, key=ranks.__getitem__)

    def _note_count(self, at: float) -> None:
        last_call = self.settings.job.last_call
        is_enough = last_call is not None and self.count >= last_call.minimum
        is_complete = self.count + len(self.unfit) >= self.settings.nodes
        self._complete_at = at if is_complete else NEVER
        # As under torchrun, the last call does not start again with each node that follows.
        self._enough_at = min(at, self._enough_at) if is_enough else NEVER

    # Who may not join.

    def objection(self, newcomer: Hello) -> Mismatch | None:
        """Return why no place is left for a newcomer; None if there is one."""
        nodes, rank = self.settings.nodes, newcomer.rank
        if rank is not None and rank >= nodes:
            own = "node rank" if self.settings.job.tasks is None else "rank"
            ranks = f"the ranks of {nodes} {self._noun}s are 0-{nodes - 1}"
            text = f"{process(newcomer)} has {own} {rank}, but {ranks}"
            return Mismatch(text, _same_command(self.settings))
        if rank is not None and (holder := self._by_rank.get(rank)):
            is_own = holder is self._members.own
            return same_rank(self.settings, rank, holder.hello, newcomer, is_own=is_own)
        if self.count == nodes:
            joined = listed(process(each.hello) for each in self._members.by_connection.values())
            called = f"{nodes + 1} nodes have connected: {joined} and {process(newcomer)}"
            return Mismatch(f"nnodes is {nodes}, but {called}", TOO_MANY_NODES_HINT)
        return None

    def leftover(self, newcomer: Node) -> Node | None:
        """Return which of the newcomer and the members with its place is left over; None if none is.

        An agent that never reached node 0 does not learn that node 0 has ended, and calls until its
        time is over. It would be one node too many in the job that its user starts instead. It runs on
        the same host, by name and address, and began to call well before this node 0 began and well
        before the other agent; anyone can claim any name.
        """
        # An agent that is not early may have begun together with node 0.
        started = min(newcomer.called_at, self._began)
        for rival in self._rivals(newcomer):
            is_early = rival.called_at < self._began - SECONDS_BETWEEN_STARTS
            ahead = started - (rival.called_at if is_early else self._began)
            if abs(ahead) > SECONDS_BETWEEN_STARTS:
                return rival if ahead > 0 else newcomer
        return None

    def _rivals(self, newcomer: Node) -> Iterable[Node]:
        """Return the members on the newcomer's host whose place the newcomer could have."""
        there = self._by_host.get((newcomer.address, newcomer.hello.host), ())
        rank = newcomer.hello.rank
        return there if rank is None else [each for each in there if each.hello.rank == rank]

    # When to begin, or to give up.

    @property
    def due(self) -> float:
        return min(self.next_notice, self.given_up_at, self.settled_at)

    @property
    def settled_at(self) -> float:
        """When the job may begin, if nothing happens until then."""
        last_call = self.settings.job.last_call
        last_call_ends = NEVER if last_call is None else self._enough_at + last_call.timeout
        settling = SECONDS_TO_SETTLE if self.callers else 0.0
        return min(self._complete_at, last_call_ends) + settling

    @property
    def given_up_at(self) -> float:
        """When it is too late for the missing nodes; never, if they are not needed.

        At once, if node 0 fails its check.
        """
        if self._members.own.hello.fault:
            return self._began
        timeout = self.settings.job.join.rdzv_timeout
        return self._began + timeout if self._enough_at == NEVER else NEVER

    # Sentences.

    def waits(self, now: float) -> str:
        """Return "2 of 4 nodes have joined: n0, n1; waiting for n2, n3 (30 s of 600 s)"."""
        settings, joined = self.settings, f"{self._counted} have joined: {self._joined}"
        last_call = settings.job.last_call
        if last_call is not None and self._enough_at != NEVER:
            seconds = f"{self.settled_at - now:.0f} s more for {self._missing}"
            return f"{joined}; waiting {seconds} (the minimum is {last_call.minimum})"
        spent = f"{now - self._began:.0f} s of {settings.job.join.rdzv_timeout:g} s"
        exports = f"; {settings.exports}" if settings.exports else ""
        return f"{joined}; waiting for {self._missing} ({spent}){exports}"

    def begins_without(self) -> str:
        """Return the notice at the end of the last call."""
        return f"starting with {self._counted}: {self._joined}; without {self._missing}"

    def nodes_missing(self, refused: Sequence[str]) -> Mismatch:
        """Return the error of a job whose nodes did not all join in time, and what to try."""
        settings = self.settings
        within = f"within {settings.job.join.rdzv_timeout:g} s"
        text = f"{self._counted} joined {within}: {self._joined}; missing: {self._missing}"
        hint = [f"refused meanwhile: {each}" for each in refused[:MAX_NAMES]]
        if settings.exports:
            hint.append(f"if this is one node: {settings.exports}")
        if settings.job.tasks is None:
            hint.append(f"run the same command on every node; each must reach {settings.place}")
        else:
            hint.append(f"{_same_command(settings)}\neach must reach {settings.place}")
        hint.append("to wait longer, give --rdzv-timeout SECONDS")
        return Mismatch(text, "\n".join(hint))

    @property
    def _noun(self) -> str:
        return self.settings.job.agent_unit

    @property
    def _counted(self) -> str:
        return f"{self.count} of {self.settings.nodes} {self._noun}s"

    @property
    def _missing(self) -> str:
        """Which nodes have not joined, or how many if that is not known."""
        return self._missing_names() or counted(self.settings.nodes - self.count, self._noun)

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
        # Members without a rank after the others, in the order of joining.
        nodes = self._members.by_connection.values()
        order = sorted(nodes, key=lambda each: ranks.get(each, self.settings.nodes))
        return listed(each.hello.host for each in order)


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]
