"""All orders in which ranks, agents and messages can meet while a step is agreed on.

Agents and coordinator are those of a told job. Ranks, the pages that they share with their agent, and
connections are data here. One move is one store or one look of a rank, one look of an agent at its
page, or one message that arrives; any that are possible may come next. A state ends where all ranks
are ordered to stop. Parts of a job are numbered, and what follows of each is found once.
"""

import pickle
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any, NamedTuple

from clusterrun.job.job import Job as AskedFor
from clusterrun.planning.plan import NodePlan
from clusterrun.policy.settings import RendezvousSettings

from tests.histories.job_history import Job, Node, is_aside
from tests.histories.worlds import numbers

HOLD = -1
GRACE = 30.0


class Doing(IntEnum):
    """What a rank does next."""

    STORE = 0
    """It writes its mark."""
    LOOK = 1
    """It looks at the agent's word."""
    WAIT = 2
    """It waits in ``requested``."""
    SAVE = 3
    """It says that it has saved."""
    LEAVE = 4
    """It waits in ``ready``."""
    HANG = 5
    """Nothing, for ever."""
    GONE = 6
    """Nothing: it has ended."""


DEATHS = ("fails", "leaves", "hangs", "lost")
"""What may happen once, at any time: a rank fails, ends with 0, or hangs; a node is lost."""


class Rank(NamedTuple):
    """What a rank does, at which step, and the step at which it was to save; -1: none."""

    doing: Doing = Doing.STORE
    step: int = 0
    stopped_at: int = -1
    is_asked: bool = False
    """It has got SIGTERM."""


class Page(NamedTuple):
    """What an agent and its ranks share, and what the agent has seen of it."""

    marks: tuple[int, ...]
    saved: tuple[bool, ...]
    seen: tuple[bool, ...]
    """Ranks whose first mark was seen."""
    seen_saved: tuple[bool, ...]
    word: int = 0
    """0: go on; HOLD; or the mark at which ranks save."""
    holding: bool = False
    """The agent is about to read the marks."""
    leaves: bool = False
    """Ranks that have saved may end."""


class Place(NamedTuple):
    """A node: its agent by number, and messages that are on their way."""

    node: int
    agent: int
    page: Page
    ranks: tuple[Rank, ...]
    up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()
    is_lost: bool = False


class State(NamedTuple):
    """Everything: coordinator and places by number."""

    coordinator: int
    places: tuple[int, ...]
    is_ending: bool = False
    is_requested: bool = False
    deaths: int = 1
    """How many may still come."""


class Parts(Job):
    """A told job whose parts are taken out and put back."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(len(sizes), sizes)
        self._kept: list[bytes] = []
        self._numbers: dict[object, int] = {}
        self.coordinator_first = self._number(self._coordinator)
        self.agents_first = [self._keep(node) for node in self._nodes]
        self.firsts = [node.first for node in self._nodes]
        self.agent = cache(self._agent)
        self.coordinator = cache(self._coordinator_hears)
        self.loses = cache(self._loses)
        self.times_out = cache(self._times_out)

    def _number(self, part: object) -> int:
        number = self._numbers.setdefault(_key(part), len(self._kept))
        if number == len(self._kept):
            self._kept.append(pickle.dumps(part, -1))
        return number

    def _copy(self, number: int) -> Any:
        return pickle.loads(self._kept[number])  # noqa: S301 - it was ours.

    def _keep(self, node: Node) -> int:
        node.up.clear()
        node.down.clear()
        node.orders.clear()
        node.deadline = None
        return self._number(node)

    def _agent(
        self, node: int, agent: int, happening: str, *args: Any
    ) -> tuple[int, tuple[str, ...], tuple[Any, ...]]:
        """Return the agent after a happening there, what followed, and its messages."""
        self._nodes[node] = there = self._copy(agent)
        match happening:
            case "receives":
                self._receives(there, *args)
            case "exits":
                self.exits(args[0], code=args[1])
            case "dies":
                self.dies(args[0], by=args[1])
            case _:
                getattr(self, happening)(*args)
        for local in tuple(there.unread):
            self.is_read(there.first + local)
        if there.leftovers:
            self.is_clean(node)
        self.has_nothing_left(node)
        sent = tuple(each for each in there.up if not is_aside(each))
        return self._keep(there), tuple(self.saw()), sent

    def is_over(self, agent: int) -> bool:
        node: Node = self._copy(agent)
        return node.is_over

    def _coordinator_hears(
        self, coordinator: int, node: int, message: Any
    ) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        """Return the coordinator after a message of a node, its answers to each, and whether all end."""
        self._restore(coordinator)
        self._nodes[node].up.append(message)
        self._is_heard(self._nodes[node])
        return self._answered()

    def _loses(self, coordinator: int, node: int) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        self._restore(coordinator)
        self.loses_node(node)
        return self._answered()

    def _times_out(self, coordinator: int) -> tuple[int, tuple[tuple[Any, ...], ...], bool]:
        self._restore(coordinator)
        self.passes(GRACE)
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
        self.saw()
        return self._number(self._coordinator), answers, self.is_ending

    def end(self, coordinator: int, places: Iterable[Place]) -> str:
        """Return why a job ends that is in this state, by the words of node 0."""
        now = self.now
        self._restore(coordinator)
        for place in places:
            node = self._nodes[place.node] = self._copy(place.agent)
            node.up.extend(place.up)
            node.down.extend(place.down)
            if place.is_lost:
                self.loses_node(place.node)
        self.settles()
        for node in self._nodes:
            if not node.is_over:
                self.exits(*(node.first + local for local in sorted(node.alive)))
        self.settles()
        self.now = now
        return next(line for line in self.saw() if line.startswith("node 0 ends with"))


class Orders:
    """All orders for nodes with these numbers of ranks, whose script takes some steps."""

    def __init__(self, sizes: Sequence[int], steps: int, deaths: Iterable[str] = ()) -> None:
        """Take the job, and which of ``DEATHS`` may happen once."""
        self._steps = steps
        self._deaths = tuple(deaths)
        self._told = Parts(sizes)
        self._sizes = sizes
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._moves = cache(lambda number: self._each(self._moves_of(self._places[number])))
        self._dead = cache(lambda number: self._each(self._deaths_of(self._places[number])))
        self._asked = cache(lambda number: self._number(self._requested(self._places[number])))
        self._sent = cache(self._with_answers)
        self._heard = cache(lambda number: self._number(_without_first(self._places[number])))
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
        return [rank for number in state.places for rank in self._places[number].ranks]

    def _check_steps(self, state: State) -> None:
        """No two ranks stop at different steps."""
        steps = {rank.stopped_at for rank in self._ranks(state)} - {-1}
        assert len(steps) <= 1, self._shown(state)

    def _check_end(self, state: State) -> str:
        """Return why all ranks are stopped; a suspension means that all that ask have saved."""
        assert all(map(self._stops, state.places)), self._shown(state)
        if state.coordinator not in self._ends:
            places = [self._places[number] for number in state.places]
            self._ends[state.coordinator] = self._told.end(state.coordinator, places)
        end = self._ends[state.coordinator]
        saved = re.search(r"all (?:but ranks? (\S+) )?saved at step (\d+)", end)
        if saved is None:
            return "too late" if "did not save" in end else "failed"
        silent, step = numbers(saved[1] or ""), int(saved[2])
        has_saved = [each for number in state.places for each in self._places[number].page.saved]
        assert {rank for rank, each in enumerate(has_saved) if not each} <= silent, self._shown(
            state
        )
        assert {rank.stopped_at for rank in self._ranks(state)} <= {-1, step}, self._shown(state)
        return "suspended"

    def _all_stop(self, number: int) -> bool:
        """Return whether each rank of a place ends once the agent has all its messages."""
        place = self._places[number]
        while place.down and not place.is_lost:
            place = self._receives(place)
        may_end = (
            rank.doing == Doing.GONE or rank.is_asked or (place.page.leaves and has_saved)
            for rank, has_saved in zip(place.ranks, place.page.saved, strict=True)
        )
        return place.is_lost or (place.page.word != HOLD and all(may_end))

    def _check_rest(self, state: State, accidents: list[State]) -> str:
        """Return how a job stands still: no rank waits, unless the end of the grace will end it."""
        doing = {rank.doing for rank in self._ranks(state)}
        if any(each.is_ending for each in accidents):
            return "the grace runs"
        assert not doing & {Doing.WAIT, Doing.LEAVE}, self._shown(state)
        if Doing.HANG in doing:
            return "a rank hangs"
        assert all(self._told.is_over(self._places[each].agent) for each in state.places)
        return "all end"

    def _shown(self, state: State) -> str:
        return "\n".join(map(str, (state, *(self._places[each] for each in state.places))))

    # What may come next.

    def _first(self) -> State:
        no = [(False,) * size for size in self._sizes]
        places = (
            Place(node, agent, Page((0,) * size, no[node], no[node], no[node]), (Rank(),) * size)
            for node, (size, agent) in enumerate(
                zip(self._sizes, self._told.agents_first, strict=True)
            )
        )
        return State(
            self._told.coordinator_first, self._each(places), deaths=1 if self._deaths else 0
        )

    def _follows(self, state: State) -> Iterator[State]:
        """Yield what follows by itself: a job in which nothing follows stands still."""
        for at, number in enumerate(state.places):
            for moved in self._moves(number):
                yield _with(state, at, moved)
            place = self._places[number]
            if place.up:
                heard = self._told.coordinator(state.coordinator, place.node, place.up[0])
                yield self._goes_on(_with(state, at, self._heard(number)), *heard)
            elif place.is_lost:
                yield self._goes_on(state, *self._told.loses(state.coordinator, place.node))

    def _accidents(self, state: State) -> Iterator[State]:
        """Yield what may come and need not: a request, a death, the end of the grace."""
        if not state.is_requested:
            for at, number in enumerate(state.places):
                yield _with(state._replace(is_requested=True), at, self._asked(number))
        late = self._told.times_out(state.coordinator)
        if late[-1]:
            yield self._goes_on(state, *late)
        if state.deaths:
            for at, number in enumerate(state.places):
                for each in self._dead(number):
                    yield _with(state._replace(deaths=0), at, each)

    def _goes_on(
        self, state: State, coordinator: int, answers: tuple[tuple[Any, ...], ...], is_ending: bool
    ) -> State:
        places = tuple(map(self._sent, state.places, answers))
        return state._replace(coordinator=coordinator, places=places, is_ending=is_ending)

    def _with_answers(self, number: int, answers: tuple[Any, ...]) -> int:
        place = self._places[number]
        return self._number(place._replace(down=(*place.down, *answers))) if answers else number

    def _number(self, place: Place) -> int:
        if place not in self._numbers:
            self._numbers[place] = len(self._places)
            self._places.append(place)
        return self._numbers[place]

    def _each(self, places: Iterable[Place]) -> tuple[int, ...]:
        return tuple(map(self._number, places))

    # Ranks: as in clusterrun.suspend.

    def _moves_of(self, place: Place) -> Iterator[Place]:
        if place.is_lost:
            return
        if place.down:
            yield self._receives(place)
        for index in range(len(place.ranks)):
            yield from self._rank_goes_on(place, index)
        yield from self._agent_looks(place)

    def _rank_goes_on(self, place: Place, index: int) -> Iterator[Place]:
        rank, page = place.ranks[index], place.page
        if rank.is_asked and rank.doing != Doing.GONE:
            yield self._ends_rank(place, index, "dies", 15)
        match rank.doing:
            case Doing.STORE if rank.step == self._steps:
                yield self._ends_rank(place, index, "exits", 0)
            case Doing.STORE:
                marks = _put(page.marks, index, rank.step + 1)
                stored = place._replace(page=page._replace(marks=marks))
                yield _with_rank(stored, index, rank._replace(doing=Doing.LOOK))
            case Doing.LOOK | Doing.WAIT if page.word != HOLD:
                stops = 0 < page.word <= rank.step + 1
                stopped = rank._replace(doing=Doing.SAVE, stopped_at=rank.step)
                onward = rank._replace(doing=Doing.STORE, step=rank.step + 1)
                yield _with_rank(place, index, stopped if stops else onward)
            case Doing.LOOK:
                yield _with_rank(place, index, rank._replace(doing=Doing.WAIT))
            case Doing.SAVE:
                page = page._replace(saved=_put(page.saved, index, value=True))
                saved = place._replace(page=page)
                yield _with_rank(saved, index, rank._replace(doing=Doing.LEAVE))
            case Doing.LEAVE if page.word == 0:
                onward = rank._replace(doing=Doing.STORE, step=rank.step + 1)
                yield _with_rank(place, index, onward)
            case Doing.LEAVE if page.leaves:
                yield self._ends_rank(place, index, "exits", 0)

    def _ends_rank(self, place: Place, index: int, how: str, number: int) -> Place:
        gone = _with_rank(place, index, place.ranks[index]._replace(doing=Doing.GONE))
        return self._agent_gets(gone, how, self._told.firsts[place.node] + index, number)

    def _deaths_of(self, place: Place) -> Iterator[Place]:
        if place.is_lost:
            return
        for index, rank in enumerate(place.ranks):
            if rank.doing == Doing.GONE:
                continue
            if "fails" in self._deaths:
                yield self._ends_rank(place, index, "exits", 1)
            if "leaves" in self._deaths:
                yield self._ends_rank(place, index, "exits", 0)
            if "hangs" in self._deaths:
                yield _with_rank(place, index, rank._replace(doing=Doing.HANG))
        # If it is node 0, all other nodes end.
        if "lost" in self._deaths and place.node:
            gone = tuple(each._replace(doing=Doing.GONE) for each in place.ranks)
            yield place._replace(is_lost=True, ranks=gone)

    # Agents.

    def _requested(self, place: Place) -> Place:
        return self._agent_gets(place, "asked_to_suspend", "USR1", place.node)

    def _receives(self, place: Place) -> Place:
        rest = place._replace(down=place.down[1:])
        return self._agent_gets(rest, "receives", place.down[0])

    def _agent_looks(self, place: Place) -> Iterator[Place]:
        """Look at the page once, as SuspendPage.events does."""
        page, first = place.page, self._told.firsts[place.node]
        alive = any(rank.doing != Doing.GONE for rank in place.ranks)
        if not alive or page.leaves or any(rank.is_asked for rank in place.ranks):
            return
        seen = tuple(mark > 0 for mark in page.marks)
        seen_saved = page.saved if page.word > 0 else page.seen_saved
        looked = page._replace(seen=seen, seen_saved=seen_saved, holding=False)
        if looked == page:
            return
        place = place._replace(page=looked)
        for index in range(len(seen)):
            if seen[index] and not page.seen[index]:
                place = self._agent_gets(place, "asks", first + index)
        if page.holding:
            place = self._agent_gets(place, "is_held", max(page.marks), place.node)
        for index in range(len(seen)):
            if seen_saved[index] and not page.seen_saved[index]:
                place = self._agent_gets(place, "saves", page.marks[index] - 1, first + index)
        yield place

    def _agent_gets(self, place: Place, happening: str, *args: Any) -> Place:
        agent, lines, sent = self._told.agent(place.node, place.agent, happening, *args)
        page, ranks = place.page, place.ranks
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
                first, asked = self._told.firsts[place.node], numbers(found[1])
                ranks = tuple(
                    rank._replace(is_asked=rank.is_asked or first + index in asked)
                    for index, rank in enumerate(ranks)
                )
        return place._replace(agent=agent, page=page, ranks=ranks, up=(*place.up, *sent))


def _key(part: object, known: set[int] | None = None) -> object:
    """Return what two equal parts have in common, in whatever order it came about.

    ``known``: objects that stand in the key already, found again from another one.
    """
    known = set() if known is None else known
    match part:
        case Mapping():
            return frozenset((_name(each), _key(part[each], known)) for each in part)
        case set() | frozenset():
            return frozenset(map(_name, part))
        case tuple() | list() | deque():
            return tuple(_key(each, known) for each in part)
        case RendezvousSettings() | NodePlan() | AskedFor():
            # None of them changes while an attempt runs.
            return type(part)
    fields = getattr(part, "__struct_fields__", None) or getattr(part, "__dict__", None)
    if fields is None or isinstance(part, type):
        return part
    if id(part) in known:
        return _name(part)
    known.add(id(part))
    return type(part), tuple(_key(getattr(part, name), known) for name in fields)


def _name(part: Any) -> object:
    """Return what stands for an object in a key that has it already: of an agent, its connection."""
    if hasattr(part, "connection"):
        return part.connection
    is_value = isinstance(part, Enum) or not hasattr(part, "__dict__")
    return part if is_value else type(part)


def _packed(state: State) -> int:
    """Return a number for a state, which takes less memory than the state."""
    coordinator, places, *rest = state
    key = coordinator
    for part in (*rest, *places):
        key = key << 32 | part
    return key


def _without_first(place: Place) -> Place:
    return place._replace(up=place.up[1:])


def _with_rank(place: Place, index: int, rank: Rank) -> Place:
    return place._replace(ranks=_put(place.ranks, index, rank))


def _with(state: State, at: int, number: int) -> State:
    # Not _replace, which takes three times as long.
    places = (*state.places[:at], number, *state.places[at + 1 :])
    return State(state[0], places, state[2], state[3], state[4])


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
