"""All that can happen while ranks agree on a step, as states: no process, no clock, no sleep.

Coordinator and agents are the functions that jobs run. Ranks, their pages and the connections are
data here. One transition is one store or one look of a rank, one look of an agent at its page, or
one message that arrives; any of those that are possible may come next.

A state ends where the coordinator stops the attempt: agents then let all ranks go, as
``tests/agent/test_suspending.py`` shows. Nodes are numbered, and what follows of each is found once.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from tests.suspending.door import (
    HOLD,
    NEVER,
    Agreement,
    AttemptState,
    Decided,
    GlobalRank,
    LocalRank,
    NotWanted,
    Phase,
    Rules,
    Saving,
    actions,
    agreement,
    decide,
    events,
    messages,
)

GRACE = 30.0


class Doing(Enum):
    """What a rank does next."""

    STORE = "write its mark"
    LOOK = "look at the agent's word"
    WAIT = "wait in requested"
    SAVE = "say that it has saved"
    LEAVE = "wait in ready"
    HANG = "nothing, for ever"
    GONE = "nothing: it has ended"


class Death(Enum):
    """What may happen once, at any time."""

    FAILS = "a rank fails"
    LEAVES = "a rank ends with 0"
    HANGS = "a rank hangs"
    LOST = "a node is lost"


class Rank(NamedTuple):
    """One rank: what it does, at which step, and the step at which it was to save; -1: none."""

    doing: Doing = Doing.STORE
    step: int = 0
    stopped_at: int = -1


class Page(NamedTuple):
    """What an agent and its ranks share, and whether the agent is about to read the marks."""

    word: int
    marks: tuple[int, ...]
    saved: tuple[bool, ...]
    holding: bool = False


class Node(NamedTuple):
    """One node: its agent by number (see ``_Agents``), and messages that are on their way."""

    agent: int
    page: Page
    ranks: tuple[Rank, ...]
    up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()
    is_lost: bool = False


class State(NamedTuple):
    """Everything; nodes by number."""

    nodes: tuple[int, ...]
    agreement: Agreement = NotWanted()
    end: Any = None
    """What ends the attempt: a decision of the agreement, or a death; None: nothing yet."""
    is_requested: bool = False
    deaths: int = 1
    """How many may still come."""


class _Agents:
    """The states of agents, by number: each is decided on once."""

    def __init__(self) -> None:
        self._states: list[AttemptState] = []
        self._numbers: dict[object, int] = {}

    def number(self, state: AttemptState) -> int:
        key = (
            (state.first_rank, state.phase, state.suspending),
            (frozenset(state.running), frozenset(state.ended)),
        )
        if key not in self._numbers:
            self._numbers[key] = len(self._states)
            self._states.append(state)
        return self._numbers[key]

    def state(self, number: int) -> AttemptState:
        return self._states[number]


class Model:
    """A job of nodes with these numbers of ranks, whose script takes some steps."""

    def __init__(self, sizes: Iterable[int], steps: int, deaths: Iterable[Death]) -> None:
        """Take the job, and what may happen to it once."""
        self._steps = steps
        self._deaths = tuple(deaths)
        self._agents = _Agents()
        self._sizes = tuple(sizes)
        self._nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._rests: dict[object, int] = {}
        # Each of these has the same answer for a node every time.
        self.moves = cache(lambda number: self._each(self._moves_of(self._nodes[number])))
        self._requests = cache(lambda number: self._requested(self._nodes[number]))
        self._dead = cache(lambda number: self._each(self._deaths_of(self._nodes[number])))
        self._sent = cache(self._node_with_message)
        self._received = cache(self._node_without_message)

    def node(self, number: int) -> Node:
        return self._nodes[number]

    def key(self, state: State) -> int:
        """Return a number for a state, which takes less memory than the state."""
        rest = (state.agreement, state.end, state.is_requested, state.deaths)
        key = self._rests.setdefault(rest, len(self._rests))
        for number in state.nodes:
            key = key << 32 | number
        return key

    def ranks(self, state: State) -> list[Rank]:
        return [rank for number in state.nodes for rank in self._nodes[number].ranks]

    def first(self) -> State:
        """Return the state in which all workers have started."""
        nodes, first = [], 0
        for size in self._sizes:
            agent = AttemptState(
                Rules(25.0, foreground=False),
                attempt=0,
                nodes=len(self._sizes),
                first_rank=GlobalRank(first),
                signal_group=False,
                starting=frozenset(),
            )
            for rank in range(size):
                agent, _ = decide(agent, events.WorkerStarted(LocalRank(rank), 1, "", 0.0))
            page = Page(0, marks=(0,) * size, saved=(False,) * size)
            node = Node(self._agents.number(agent), page, (Rank(),) * size)
            nodes.append(self._number(node))
            first += size
        return State(tuple(nodes), deaths=1 if self._deaths else 0)

    def next_states(self, state: State) -> Iterator[State]:
        """Yield what follows by itself: a job in which nothing follows stands still."""
        for at, number in enumerate(state.nodes):
            for moved in self.moves(number):
                yield _with(state, at, moved)
            if self._nodes[number].up:
                yield self._coordinator_receives(state, at)

    def accidents(self, state: State) -> Iterator[State]:
        """Yield what may come and need not: a request, a death, the end of the grace."""
        if not state.is_requested:
            for at, number in enumerate(state.nodes):
                wanted = self._requests(number)
                yield _with(state._replace(is_requested=True), at, wanted)
        if (due := agreement.due(state.agreement)) < NEVER:
            yield self._carry_out(state, agreement.time_passed(state.agreement, due))
        if state.deaths:
            dead = state._replace(deaths=state.deaths - 1)
            for at, number in enumerate(state.nodes):
                for each in self._dead(number):
                    yield _with(dead, at, each)

    def _number(self, node: Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        return self._numbers[node]

    def _each(self, nodes: Iterable[Node]) -> tuple[int, ...]:
        return tuple(map(self._number, nodes))

    # Ranks: as in clusterrun.suspend.

    def _moves_of(self, node: Node) -> Iterator[Node]:
        if node.is_lost:
            return
        if node.down:
            order, *later = node.down
            rest = node._replace(down=tuple(later))
            yield self._agent_gets(rest, events.CoordinatorSent(order, 0.0))
        for index in range(len(node.ranks)):
            yield from self._rank_goes_on(node, index)
        yield from self._agent_looks(node)

    def _rank_goes_on(self, node: Node, index: int) -> Iterator[Node]:
        rank, page = node.ranks[index], node.page
        match rank.doing:
            case Doing.STORE if rank.step == self._steps:
                yield self._ends(node, index, 0)
            case Doing.STORE:
                marks = _put(page.marks, index, rank.step + 1)
                stored = node._replace(page=page._replace(marks=marks))
                yield _with_rank(stored, index, rank._replace(doing=Doing.LOOK))
            case Doing.LOOK if page.word == 0:
                yield _with_rank(node, index, Rank(Doing.STORE, rank.step + 1))
            case Doing.LOOK | Doing.WAIT if page.word != HOLD:
                yield _with_rank(node, index, _answered(rank, page.word))
            case Doing.LOOK:
                yield _with_rank(node, index, rank._replace(doing=Doing.WAIT))
            case Doing.SAVE:
                saved = _put(page.saved, index, value=True)
                node = node._replace(page=page._replace(saved=saved))
                yield _with_rank(node, index, rank._replace(doing=Doing.LEAVE))
            case Doing.LEAVE if page.word == 0:
                yield _with_rank(node, index, Rank(Doing.STORE, rank.step + 1))

    def _ends(self, node: Node, index: int, code: int) -> Node:
        gone = _with_rank(node, index, node.ranks[index]._replace(doing=Doing.GONE))
        return self._agent_gets(gone, events.WorkerExited(LocalRank(index), code, 0.0))

    def _deaths_of(self, node: Node) -> Iterator[Node]:
        if node.is_lost:
            return
        for index, rank in enumerate(node.ranks):
            if rank.doing is Doing.GONE:
                continue
            for code, death in ((1, Death.FAILS), (0, Death.LEAVES)):
                if death in self._deaths:
                    yield self._ends(node, index, code)
            if Death.HANGS in self._deaths:
                yield _with_rank(node, index, rank._replace(doing=Doing.HANG))
        # If it is node 0, all other nodes end.
        if Death.LOST in self._deaths and self._agents.state(node.agent).first_rank:
            gone = tuple(each._replace(doing=Doing.GONE) for each in node.ranks)
            yield node._replace(is_lost=True, ranks=gone, up=(*node.up, Death.LOST))

    # Agents: their decisions are those of jobs; pages and connections are data.

    def _requested(self, node: Node) -> int:
        return self._number(self._agent_gets(node, events.SuspensionWanted("USR1", 0.0)))

    def _agent_looks(self, node: Node) -> Iterator[Node]:
        """Look at the page once, as SuspendPage.events does."""
        agent, page = self._agents.state(node.agent), node.page
        known, ranks = agent.suspending, [LocalRank(index) for index in range(len(node.ranks))]
        seen: list[events.Event] = [
            events.RankAsked(rank, 0.0)
            for rank in ranks
            if page.marks[rank] and rank not in known.asked
        ]
        if page.holding:
            node = node._replace(page=page._replace(holding=False))
            seen.append(events.RanksHeld(max(page.marks), 0.0))
        if known.mark:
            seen += [
                events.RankSaved(rank, page.marks[rank], 0.0)
                for rank in ranks
                if page.saved[rank] and rank not in known.saved
            ]
        if seen and agent.phase is Phase.RUNNING:
            for event in seen:
                node = self._agent_gets(node, event)
            yield node

    def _agent_gets(self, node: Node, event: events.Event) -> Node:
        state, decided = decide(self._agents.state(node.agent), event)
        up, page = list(node.up), node.page
        for action in decided:
            match action:
                case actions.SendToCoordinator(messages.RankAsks()):
                    # Only for a later SIGTERM.
                    continue
                case actions.SendToCoordinator(message):
                    up.append(message)
                case actions.ReportFailure():
                    up.append(Death.FAILS)
                case actions.HoldRanks():
                    page = page._replace(word=HOLD, holding=True)
                case actions.ReleaseRanks(mark):
                    page = page._replace(word=mark)
                case actions.LetRanksLeave():
                    word = 0 if page.word == HOLD else page.word
                    page = page._replace(word=word, holding=False)
        agent = self._agents.number(state)
        return node._replace(agent=agent, page=page, up=tuple(up))

    # The coordinator: its decisions are those of jobs.

    def _coordinator_receives(self, state: State, at: int) -> State:
        message = self._nodes[state.nodes[at]].up[0]
        state, known = _with(state, at, self._received(state.nodes[at])), state.agreement
        match message:
            case messages.RequestSuspension():
                members = range(len(state.nodes))
                return self._carry_out(state, agreement.wanted(known, members, 0.0, GRACE))
            case messages.Held(_, mark):
                return self._carry_out(state, agreement.held(known, at, mark, 0.0, GRACE))
            case messages.Saves(_, progress):
                return self._carry_out(state, agreement.progressed(known, at, progress, 0.0))
            case messages.RankLeft():
                return self._carry_out(state, agreement.rank_left(known))
            case _:
                return state._replace(end=message)

    def _carry_out(self, state: State, decided: Decided) -> State:
        known = decided[0]
        if isinstance(known, Saving):
            # Late ranks are named, and nothing else follows from that.
            known = replace(known, named_at=NEVER)
        state = state._replace(agreement=known)
        for decision in decided[1]:
            match decision:
                case agreement.Hold():
                    state = self._send(state, messages.HoldRanks(0))
                case agreement.Agree(mark):
                    state = self._send(state, messages.SaveAt(0, mark))
                case agreement.Cancel():
                    state = self._send(state, messages.CancelSuspension(0))
                case agreement.Succeed() | agreement.GiveUp():
                    state = state._replace(end=decision)
        return state

    def _send(self, state: State, message: Any) -> State:
        return state._replace(nodes=tuple(self._sent(each, message) for each in state.nodes))

    def _node_with_message(self, number: int, message: Any) -> int:
        node = self._nodes[number]
        return self._number(node._replace(down=(*node.down, message)))

    def _node_without_message(self, number: int) -> int:
        node = self._nodes[number]
        return self._number(node._replace(up=node.up[1:]))


def _answered(rank: Rank, word: int) -> Rank:
    """Return the rank after ``requested`` has returned."""
    if word and rank.step + 1 >= word:
        return rank._replace(doing=Doing.SAVE, stopped_at=rank.step)
    return Rank(Doing.STORE, rank.step + 1, rank.stopped_at)


def _with_rank(node: Node, index: int, rank: Rank) -> Node:
    return node._replace(ranks=_put(node.ranks, index, rank))


def _with(state: State, at: int, number: int) -> State:
    return state._replace(nodes=_put(state.nodes, at, number))


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
