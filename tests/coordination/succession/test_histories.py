"""Random histories of agents that have lost node 0: never two coordinators at once."""

import random

import pytest

from tests.coordination.door import (
    Gather,
    GiveUp,
    JobPhase,
    Search,
    answered,
    has_ended,
    step,
    time_passed,
)
from tests.coordination.door import (
    search_due as due,
)
from tests.coordination.succession.lost_coordinator import (
    SECONDS,
    claiming,
    comes,
    gathers,
    is_in_world,
    known_to,
    running_job,
)
from tests.rendezvous.replay import Replay
from tests.rounds import in_all_rounds, numbers

HISTORIES = 150


class History:
    """Agents that are killed and cut off from each other at any time, each with its search."""

    def __init__(self, nodes: int, dice: random.Random) -> None:
        self.dice = dice
        self.job = running_job(nodes)
        self.now = 0.0
        self.alive = set(range(1, nodes))
        self.cut = {
            frozenset((one, other))
            for one in self.alive
            for other in self.alive
            if one < other and dice.random() < 0.25
        }
        self.known = {each: known_to(self.job, 1) for each in self.alive}
        self.searches = {
            each: Search(f"agent {each}", self.known[1].successors, dice.uniform(0, 2), SECONDS)
            for each in self.alive
        }
        self.coordinators: dict[int, Replay] = {}
        self.claims: dict[int, int] = {}

    def goes_on(self) -> None:
        """Let everything happen that can, until all have ended or have another coordinator."""
        while self.now < 3 * SECONDS:
            self.now += self.dice.choice((0.0, 0.1, 1.0))
            for number in self.dice.sample(sorted(self.alive), len(self.alive)):
                self.turn(number)
                if self.now < 2 * SECONDS and self.dice.random() < 0.01:
                    self.dies(number)
            self.check()

    def turn(self, number: int) -> None:
        """Let one agent do what it has to do."""
        coordinator = self.coordinators.get(number)
        if coordinator is not None:
            coordinator.waits(max(0.0, self.now - coordinator.now))
        if number in self.claims or coordinator is not None:
            return
        search = self.searches[number]
        if self.now < search.began:
            return
        search = time_passed(search, self.now)
        match step(search):
            case Gather():
                self.coordinators[number] = gathers(
                    self.known[number], number, ended={0, *search.ended}
                )
                self.coordinators[number].now = self.now
            case GiveUp():
                self.dies(number)
            case _:
                search = self.calls(number, search)
        self.searches[number] = search

    def calls(self, number: int, search: Search) -> Search:
        """Let one agent connect to the successor to which it turns."""
        successor = search.successors[search.first].node_rank
        if frozenset((number, successor)) in self.cut:
            return search
        if successor not in self.alive:
            return has_ended(search)
        if successor not in self.coordinators:
            return search
        self.claims[number] = successor
        comes(self.coordinators[successor], claiming(self.known[number], number, number), number)
        return answered(search)

    def dies(self, number: int) -> None:
        """Let an agent end; those that it can reach learn of it."""
        self.alive.discard(number)
        if self.coordinators.pop(number, None) is not None:
            for each in [each for each, of in self.claims.items() if of == number]:
                del self.claims[each]
                self.searches[each] = has_ended(self.searches[each])
        followed = self.claims.pop(number, None)
        if followed is not None:
            self.coordinators[followed].goes(number)

    def check(self) -> None:
        """Two coordinators have never begun an attempt, while both live."""
        going = [
            each for each, job in self.coordinators.items() if job.state.phase is JobPhase.RUNNING
        ]
        assert len(going) <= 1, going


@pytest.mark.timeout(in_all_rounds(120))
@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_never_two_coordinators(nodes: int) -> None:
    """And every agent that lives is in the new world, or its coordinator has ended the job."""
    began, all_numbers = 0, numbers(HISTORIES)
    for number in all_numbers:
        history = History(nodes, random.Random(number))
        history.goes_on()
        for each in history.alive:
            leader = history.claims.get(each, each)
            job = history.coordinators[leader]
            is_in_it = (0 if leader == each else each) in is_in_world(job)
            began += is_in_it
            refused = not is_in_it and job.state.phase is JobPhase.RUNNING
            assert is_in_it or refused or job.state.phase is JobPhase.OVER
    assert began > len(all_numbers) / 10


def test_a_search_that_has_ended_needs_no_more_time() -> None:
    """Whatever comes then."""
    search = time_passed(Search("agent 1", (), 0.0, SECONDS), SECONDS)

    assert step(search) == GiveUp()
    assert due(search) >= SECONDS
