"""Explores all interleavings of ranks, agents and messages while a suspension step is agreed on.

Agents and coordinator are those of ``job_history.Job``. Ranks, the pages that they share with their
agent, and connections are data. One move is one write or read of a rank, one read of an agent, or one
message that arrives; any possible move may come next. A path ends when all ranks are ordered to stop.
Coordinators and nodes are stored as numbered snapshots, and the effect of a move on each is cached.
"""

import pickle
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any, NamedTuple

from clusterrun.job.job import Job as ResolvedJob
from clusterrun.planning.plan import NodePlan
from clusterrun.policy.settings import RendezvousSettings

from tests.histories.job_history import Job, Node, is_aside
from tests.histories.worlds import numbers

HOLD = -1
GRACE = 30.0


class Doing(IntEnum):
    """What a rank does next."""

    STORE = 0
    """It writes its mark (1 + step)."""
    READ = 1
    """It reads the agent's word."""
    WAIT = 2
    """It waits in ``requested``."""
    SAVE = 3
    """It reports that it has saved."""
    LEAVE = 4
    """It waits in ``ready``."""
    HANG = 5
    """It hangs forever."""
    GONE = 6
    """It has ended."""


DEATHS = ("fails", "exits", "hangs", "lost")
"""What may happen once, at any time: a rank fails, exits with 0 or hangs; a node is lost."""


class Rank(NamedTuple):
    """A rank."""

    doing: Doing = Doing.STORE
    step: int = 0
    stopped_at: int = -1
    """The step at which it was to save; -1: none."""
    is_asked: bool = False
    """It has got SIGTERM."""


class Page(NamedTuple):
    """The page that an agent and its ranks share, and what the agent has read of it."""

    marks: tuple[int, ...]
    saved: tuple[bool, ...]
    seen: tuple[bool, ...]
    """Ranks whose first mark the agent has read."""
    seen_saved: tuple[bool, ...]
    word: int = 0
    """0: continue; HOLD; or the mark at which ranks save."""
    holding: bool = False
    """The agent is about to read the marks."""
    leaves: bool = False
    """Ranks that have saved may exit."""


class NodeState(NamedTuple):
    """A node: the number of its agent's snapshot, and messages in transit."""

    node: int
    agent: int
    page: Page
    ranks: tuple[Rank, ...]
    up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()
    is_lost: bool = False


class State(NamedTuple):
    """The whole job: the snapshot numbers of the coordinator and the nodes."""

    coordinator: int
    nodes: tuple[int, ...]
    is_ending: bool = False
    is_requested: bool = False
    deaths: int = 1
    """How many may still happen."""


class SnapshotJob(Job):
    """A job whose coordinator and agents are stored and restored."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(len(sizes), sizes)
        self._snapshots: list[bytes] = []
        self._numbers: dict[object, int] = {}
        self.coordinator_first = self._number(self._coordinator)
        self.agents_first = [self._keep(node) for node in self._nodes]
        self.first_ranks = [node.first for node in self._nodes]
        self.agent = cache(self._agent)
        self.coordinator = cache(self._coordinator_receives)
        self.loses = cache(self._loses)
        self.times_out = cache(self._times_out)

    def _number(self, part: object) -> int:
        number = self._numbers.setdefault(_key(part), len(self._snapshots))
        if number == len(self._snapshots):
            self._snapshots.append(pickle.dumps(part, -1))
        return number

    def _copy(self, number: int) -> Any:
        return pickle.loads(self._snapshots[number])  # noqa: S301 - it was ours.

    def _keep(self, node: Node) -> int:
        node.up.clear()
        node.down.clear()
        node.orders.clear()
        node.deadline = None
        return self._number(node)

    def _agent(
        self, node: int, agent: int, happening: str, *args: Any
    ) -> tuple[int, tuple[str, ...], tuple[Any, ...]]:
        """Return the agent after something has happened there, the lines that followed, and its messages."""
        self._nodes[node] = there = self._copy(agent)
        match happening:
            case "receives":
                self._receive(there, *args)
            case "exits":
                self.exits(args[0], code=args[1])
            case "dies":
                self.dies(args[0], by=args[1])
            case _:
                getattr(self, happening)(*args)
        for local in tuple(there.unread):
            self.output_is_read(there.first + local)
        if there.leftovers:
            self.is_cleaned_up(node)
        self.leftovers_end(node)
        sent = tuple(each for each in there.up if not is_aside(each))
        return self._keep(there), tuple(self.new_lines()), sent

    def is_over(self, agent: int) -> bool:
        node: Node = self._copy(agent)
        return node.is_over

    def _coordinator_receives(
        self, coordinator: int, node: int, message: Any
    ) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        """Return the coordinator after a node's message, its messages to each node, and whether all stop."""
        self._restore(coordinator)
        self._nodes[node].up.append(message)
        self._deliver_up(self._nodes[node])
        return self._answered()

    def _loses(self, coordinator: int, node: int) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        self._restore(coordinator)
        self.loses_node(node)
        return self._answered()

    def _times_out(self, coordinator: int) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        self._restore(coordinator)
        self.time_passes(GRACE)
        self.now -= GRACE
        return self._answered()

    def _restore(self, coordinator: int) -> None:
        self._coordinator = self._copy(coordinator)
        self.is_ending = False
        for number, node in enumerate(self._nodes):
            self._nodes[number] = Node(number, node.size)

    def _answered(self) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        answers = tuple(
            tuple(each for each in node.down if not is_aside(each)) for node in self._nodes
        )
        self.new_lines()
        return self._number(self._coordinator), answers, self.is_ending

    def end(self, coordinator: int, nodes: Iterable[NodeState]) -> str:
        """Return node 0's line about why a job in this state ends."""
        now = self.now
        self._restore(coordinator)
        for node_state in nodes:
            node = self._nodes[node_state.node] = self._copy(node_state.agent)
            node.up.extend(node_state.up)
            node.down.extend(node_state.down)
            if node_state.is_lost:
                self.loses_node(node_state.node)
        self.settles()
        for node in self._nodes:
            if not node.is_over:
                self.exits(*(node.first + local for local in sorted(node.alive)))
        self.settles()
        self.now = now
        return next(line for line in self.new_lines() if line.startswith("node 0 ends with"))


class Orders:
    """All interleavings for nodes with these numbers of ranks, whose script runs some steps."""

    def __init__(self, sizes: Sequence[int], steps: int, deaths: Iterable[str] = ()) -> None:
        """Take the job, and which of ``DEATHS`` may happen once."""
        self._steps = steps
        self._deaths = tuple(deaths)
        self._job = SnapshotJob(sizes)
        self._sizes = sizes
        self._node_states: list[NodeState] = []
        self._numbers: dict[NodeState, int] = {}
        self._moves = cache(lambda number: self._each(self._moves_of(self._node_states[number])))
        self._dead = cache(lambda number: self._each(self._deaths_of(self._node_states[number])))
        self._asked = cache(lambda number: self._number(self._requested(self._node_states[number])))
        self._sent = cache(self._with_answers)
        self._received = cache(
            lambda number: self._number(_without_first(self._node_states[number]))
        )
        self._stops = cache(self._all_stop)
        self._ends: dict[int, str] = {}

    def explore(self) -> tuple[int, set[str]]:
        """Visit all states; return how many there are, and how the jobs end."""
        first = self._first()
        seen, to_visit, ends = {_packed(first)}, [first], set[str]()
        while to_visit:
            state = to_visit.pop()
            self._check_steps(state)
            if state.is_ending:
                ends.add(self._check_end(state))
                continue
            following, accidents = list(self._follows(state)), list(self._accidents(state))
            if not following:
                ends.add(self._check_rest(state, accidents))
            for each in (*following, *accidents):
                if (key := _packed(each)) not in seen:
                    seen.add(key)
                    to_visit.append(each)
        return len(seen), ends

    # What must hold.

    def _ranks(self, state: State) -> list[Rank]:
        return [rank for number in state.nodes for rank in self._node_states[number].ranks]

    def _check_steps(self, state: State) -> None:
        """No two ranks stop at different steps."""
        steps = {rank.stopped_at for rank in self._ranks(state)} - {-1}
        assert len(steps) <= 1, self._shown(state)

    def _check_end(self, state: State) -> str:
        """Return why all ranks are stopped; check that a suspension means that all calling ranks have saved."""
        assert all(map(self._stops, state.nodes)), self._shown(state)
        if state.coordinator not in self._ends:
            nodes = [self._node_states[number] for number in state.nodes]
            self._ends[state.coordinator] = self._job.end(state.coordinator, nodes)
        end = self._ends[state.coordinator]
        saved = re.search(r"all (?:but ranks? (\S+) )?saved at step (\d+)", end)
        if saved is None:
            return "too late" if re.search("did not (save|answer)", end) else "failed"
        silent, step = numbers(saved[1] or ""), int(saved[2])
        has_saved = [
            each for number in state.nodes for each in self._node_states[number].page.saved
        ]
        assert {rank for rank, each in enumerate(has_saved) if not each} <= silent, self._shown(
            state
        )
        assert {rank.stopped_at for rank in self._ranks(state)} <= {-1, step}, self._shown(state)
        return "suspended"

    def _all_stop(self, number: int) -> bool:
        """Return whether each rank of a node_state ends once the agent has all its messages."""
        node_state = self._node_states[number]
        while node_state.down and not node_state.is_lost:
            node_state = self._receives(node_state)
        may_end = (
            rank.doing == Doing.GONE or rank.is_asked or (node_state.page.leaves and has_saved)
            for rank, has_saved in zip(node_state.ranks, node_state.page.saved, strict=True)
        )
        return node_state.is_lost or (node_state.page.word != HOLD and all(may_end))

    def _check_rest(self, state: State, accidents: list[State]) -> str:
        """Return how a job rests: no rank waits, unless the end of the grace period will end it."""
        doing = {rank.doing for rank in self._ranks(state)}
        if any(each.is_ending for each in accidents):
            return "the grace runs"
        assert not doing & {Doing.WAIT, Doing.LEAVE}, self._shown(state)
        if Doing.HANG in doing:
            return "a rank hangs"
        assert all(self._job.is_over(self._node_states[each].agent) for each in state.nodes)
        return "all end"

    def _shown(self, state: State) -> str:
        return "\n".join(map(str, (state, *(self._node_states[each] for each in state.nodes))))

    # What may come next.

    def _first(self) -> State:
        no = [(False,) * size for size in self._sizes]
        nodes = (
            NodeState(
                node, agent, Page((0,) * size, no[node], no[node], no[node]), (Rank(),) * size
            )
            for node, (size, agent) in enumerate(
                zip(self._sizes, self._job.agents_first, strict=True)
            )
        )
        return State(
            self._job.coordinator_first, self._each(nodes), deaths=1 if self._deaths else 0
        )

    def _follows(self, state: State) -> Iterator[State]:
        """Yield the states that must follow sooner or later."""
        for at, number in enumerate(state.nodes):
            for moved in self._moves(number):
                yield _with(state, at, moved)
            node_state = self._node_states[number]
            if node_state.up:
                heard = self._job.coordinator(state.coordinator, node_state.node, node_state.up[0])
                yield self._after_coordinator(_with(state, at, self._received(number)), *heard)
            elif node_state.is_lost:
                yield self._after_coordinator(
                    state, *self._job.loses(state.coordinator, node_state.node)
                )

    def _accidents(self, state: State) -> Iterator[State]:
        """Yield the states that may follow: after a request, a death or the end of the grace period."""
        if not state.is_requested:
            for at, number in enumerate(state.nodes):
                yield _with(state._replace(is_requested=True), at, self._asked(number))
        late = self._job.times_out(state.coordinator)
        if late[-1]:
            yield self._after_coordinator(state, *late)
        if state.deaths:
            for at, number in enumerate(state.nodes):
                for each in self._dead(number):
                    yield _with(state._replace(deaths=0), at, each)

    def _after_coordinator(
        self, state: State, coordinator: int, answers: tuple[tuple[Any, ...], ...], is_ending: bool
    ) -> State:
        nodes = tuple(map(self._sent, state.nodes, answers))
        return state._replace(coordinator=coordinator, nodes=nodes, is_ending=is_ending)

    def _with_answers(self, number: int, answers: tuple[Any, ...]) -> int:
        node_state = self._node_states[number]
        return (
            self._number(node_state._replace(down=(*node_state.down, *answers)))
            if answers
            else number
        )

    def _number(self, node_state: NodeState) -> int:
        if node_state not in self._numbers:
            self._numbers[node_state] = len(self._node_states)
            self._node_states.append(node_state)
        return self._numbers[node_state]

    def _each(self, nodes: Iterable[NodeState]) -> tuple[int, ...]:
        return tuple(map(self._number, nodes))

    # Ranks: as in clusterrun.suspend.

    def _moves_of(self, node_state: NodeState) -> Iterator[NodeState]:
        if node_state.is_lost:
            return
        if node_state.down:
            yield self._receives(node_state)
        for index in range(len(node_state.ranks)):
            yield from self._rank_moves(node_state, index)
        yield from self._agent_reads_page(node_state)

    def _rank_moves(self, node_state: NodeState, index: int) -> Iterator[NodeState]:
        rank, page = node_state.ranks[index], node_state.page
        if rank.is_asked and rank.doing != Doing.GONE:
            yield self._ends_rank(node_state, index, "dies", 15)
        match rank.doing:
            case Doing.STORE if rank.step == self._steps:
                yield self._ends_rank(node_state, index, "exits", 0)
            case Doing.STORE:
                marks = _put(page.marks, index, rank.step + 1)
                stored = node_state._replace(page=page._replace(marks=marks))
                yield _with_rank(stored, index, rank._replace(doing=Doing.READ))
            case Doing.READ | Doing.WAIT if page.word != HOLD:
                stops = 0 < page.word <= rank.step + 1
                stopped = rank._replace(doing=Doing.SAVE, stopped_at=rank.step)
                onward = rank._replace(doing=Doing.STORE, step=rank.step + 1)
                yield _with_rank(node_state, index, stopped if stops else onward)
            case Doing.READ:
                yield _with_rank(node_state, index, rank._replace(doing=Doing.WAIT))
            case Doing.SAVE:
                page = page._replace(saved=_put(page.saved, index, value=True))
                saved = node_state._replace(page=page)
                yield _with_rank(saved, index, rank._replace(doing=Doing.LEAVE))
            case Doing.LEAVE if page.word == 0:
                onward = rank._replace(doing=Doing.STORE, step=rank.step + 1)
                yield _with_rank(node_state, index, onward)
            case Doing.LEAVE if page.leaves:
                yield self._ends_rank(node_state, index, "exits", 0)

    def _ends_rank(self, node_state: NodeState, index: int, how: str, number: int) -> NodeState:
        gone = _with_rank(node_state, index, node_state.ranks[index]._replace(doing=Doing.GONE))
        return self._agent_handles(
            gone, how, self._job.first_ranks[node_state.node] + index, number
        )

    def _deaths_of(self, node_state: NodeState) -> Iterator[NodeState]:
        if node_state.is_lost:
            return
        for index, rank in enumerate(node_state.ranks):
            if rank.doing == Doing.GONE:
                continue
            if "fails" in self._deaths:
                yield self._ends_rank(node_state, index, "exits", 1)
            if "exits" in self._deaths:
                yield self._ends_rank(node_state, index, "exits", 0)
            if "hangs" in self._deaths:
                yield _with_rank(node_state, index, rank._replace(doing=Doing.HANG))
        # If it is node 0, all other nodes end.
        if "lost" in self._deaths and node_state.node:
            gone = tuple(each._replace(doing=Doing.GONE) for each in node_state.ranks)
            yield node_state._replace(is_lost=True, ranks=gone)

    # Agents.

    def _requested(self, node_state: NodeState) -> NodeState:
        return self._agent_handles(node_state, "asked_to_suspend", "USR1", node_state.node)

    def _receives(self, node_state: NodeState) -> NodeState:
        rest = node_state._replace(down=node_state.down[1:])
        return self._agent_handles(rest, "receives", node_state.down[0])

    def _agent_reads_page(self, node_state: NodeState) -> Iterator[NodeState]:
        """Look at the page once, as SuspendPage.events does."""
        page, first = node_state.page, self._job.first_ranks[node_state.node]
        alive = any(rank.doing != Doing.GONE for rank in node_state.ranks)
        if not alive or page.leaves or any(rank.is_asked for rank in node_state.ranks):
            return
        seen = tuple(mark > 0 for mark in page.marks)
        seen_saved = page.saved if page.word > 0 else page.seen_saved
        looked = page._replace(seen=seen, seen_saved=seen_saved, holding=False)
        if looked == page:
            return
        node_state = node_state._replace(page=looked)
        for index in range(len(seen)):
            if seen[index] and not page.seen[index]:
                node_state = self._agent_handles(node_state, "calls_requested", first + index)
        if page.holding:
            node_state = self._agent_handles(
                node_state, "holds_ranks", max(page.marks), node_state.node
            )
        for index in range(len(seen)):
            if seen_saved[index] and not page.seen_saved[index]:
                node_state = self._agent_handles(
                    node_state, "saves", page.marks[index] - 1, first + index
                )
        yield node_state

    def _agent_handles(self, node_state: NodeState, happening: str, *args: Any) -> NodeState:
        agent, lines, sent = self._job.agent(node_state.node, node_state.agent, happening, *args)
        page, ranks = node_state.page, node_state.ranks
        for line in lines:
            if "holds its ranks" in line:
                page = page._replace(word=HOLD, holding=True)
            elif "lets its ranks go on" in line:
                step = re.search(r"step (\d+)", line)
                page = page._replace(word=int(step[1]) + 1 if step else 0)
            elif "lets ranks that have saved end" in line:
                word = 0 if page.word == HOLD else page.word
                page = page._replace(word=word, holding=False, leaves=True)
            elif found := re.search(r"sends SIGTERM to ranks? (\S+)", line):
                first, asked = self._job.first_ranks[node_state.node], numbers(found[1])
                ranks = tuple(
                    rank._replace(is_asked=rank.is_asked or first + index in asked)
                    for index, rank in enumerate(ranks)
                )
        return node_state._replace(agent=agent, page=page, ranks=ranks, up=(*node_state.up, *sent))


def _key(part: object, known: set[int] | None = None) -> object:
    """Return a key that equal objects have in common, whatever the order of their sets and mappings.

    ``known``: the ids of objects that the key already has.
    """
    known = set() if known is None else known
    match part:
        case Mapping():
            return frozenset((_name(each), _key(part[each], known)) for each in part)
        case set() | frozenset():
            return frozenset(map(_name, part))
        case tuple() | list() | deque():
            return tuple(_key(each, known) for each in part)
        case RendezvousSettings() | NodePlan() | ResolvedJob():
            # These do not change while an attempt runs.
            return type(part)
    fields = getattr(part, "__struct_fields__", None) or getattr(part, "__dict__", None)
    if fields is None or isinstance(part, type):
        return part
    if id(part) in known:
        return _name(part)
    known.add(id(part))
    return type(part), tuple(_key(getattr(part, name), known) for name in fields)


def _name(part: Any) -> object:
    """Return the key of an object that the whole key already has: an agent's connection."""
    if hasattr(part, "connection"):
        return part.connection
    config = getattr(part, "__struct_config__", None)
    is_value = config.frozen if config else not hasattr(part, "__dict__")
    return part if is_value or isinstance(part, Enum) else type(part)


def _packed(state: State) -> int:
    """Return a number for a state, which takes less memory than the state."""
    coordinator, nodes, *rest = state
    key = coordinator
    for part in (*rest, *nodes):
        key = key << 32 | part
    return key


def _without_first(node_state: NodeState) -> NodeState:
    return node_state._replace(up=node_state.up[1:])


def _with_rank(node_state: NodeState, index: int, rank: Rank) -> NodeState:
    return node_state._replace(ranks=_put(node_state.ranks, index, rank))


def _with(state: State, at: int, number: int) -> State:
    # Not _replace, which takes three times as long.
    nodes = (*state.nodes[:at], number, *state.nodes[at + 1 :])
    return State(state[0], nodes, state[2], state[3], state[4])


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
