"""A job that has lost node 0, for tests: its agents, as far as succession goes."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tests.coordination.door import (
    Claim,
    Hello,
    JobPhase,
    NextAttempt,
    NodeLost,
    ReformRules,
    Refused,
    Standby,
    Succession,
    WorldFormed,
    taken_over,
)
from tests.rendezvous.nodes import TERMS, hello, opened_job
from tests.rendezvous.replay import Replay

SECONDS = 15.0


def running_job(nodes: int, *, spares: int = 0, **values: Any) -> Replay:
    """Return a job that goes on without its node 0: elastic from one node, or with spares."""
    rules = ReformRules(spares=spares, fails_over=True)
    if not spares:
        rules = replace(rules, fewest=1, most=nodes + 1)
    job = Replay(opened_job(nodes, reforming=rules, keeps_joining_port=True, **values))
    for number in range(1, nodes):
        job.joins(number, standby=standby(number))
    assert job.state.phase is JobPhase.RUNNING
    return job


def standby(number: int) -> Standby:
    return Standby(1000 + number, 2000 + number)


def known_to(job: Replay, number: int) -> Succession:
    """Return what this agent knows last."""
    return [each for each in job.sent_to(number) if isinstance(each, Succession)][-1]


def claiming(known: Succession, number: int, rank: int | None, **values: Any) -> Hello:
    """Return the hello of the agent of this number and node rank to a successor."""
    claim = Claim(known.attempt, known.coordinator, rank, 0, rank is not None)
    return hello(number, standby=standby(number), claim=replace(claim, **values))


def gathers(
    known: Succession,
    number: int,
    *,
    ended: Iterable[int] = (0,),
    age: float = 0.0,
    **values: Any,
) -> Replay:
    """Return the coordinator of this successor, at the beginning.

    ``age``: seconds since it received something from the lost one.
    """
    rules = ReformRules(fewest=1, most=9, fails_over=True)
    terms = replace(TERMS, **{"reforming": rules, "nodes": 9, **values})
    own = claiming(known, number, number, age=age)
    lost = NodeLost(known.node_rank, "n0")
    return Replay(taken_over(terms, own, known, lost, ended=ended, at=0.0, until=SECONDS))


def comes(successor: Replay, newcomer: Hello, number: int) -> None:
    """An agent comes to the successor, by connection ``number``."""
    successor.newest = max(successor.newest, number)
    successor.calls()
    successor.introduces(number, newcomer)


def is_in_world(successor: Replay) -> set[int]:
    """Return the connections that take part in the attempt that has begun."""
    return {
        number
        for number, message in successor.sent
        if isinstance(message, NextAttempt | WorldFormed)
    }


def is_refused(successor: Replay, number: int) -> bool:
    return any(isinstance(each, Refused) for each in successor.sent_to(number))
