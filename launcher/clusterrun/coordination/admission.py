"""Who is let in, and what is said of who is not. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.coordination import notices
from clusterrun.coordination.messages import Hello, Refusal
from clusterrun.coordination.state import OWN, Phase, State

SAME_FLAGS = "Start the same command on all nodes, with another --node-rank each."
RUN_ID_HINT = "Give all nodes the same --run-id, or none."
TOO_LATE_HINT = "Nobody is let in later; --last-call-timeout makes the job wait longer."
PLACE_HINT = "Two jobs at once need two ports: give each its own --master-port."


class TurnedAway(Struct, frozen=True):
    """A caller that does not belong here; the job goes on waiting."""

    refusal: Refusal
    told: str
    """What it is told, and a hint."""
    hint: str
    noted: str
    """What node 0 says of it; "" if nothing."""


class Quarrel(Struct, frozen=True):
    """The nodes of this job contradict each other, and it can't be."""

    text: str
    hint: str

    @property
    def refusal(self) -> TurnedAway:
        """The refusal of the newcomer alone."""
        return TurnedAway(Refusal.GIVE_UP, self.text, self.hint, self.text)


def objection(state: State, newcomer: Hello) -> TurnedAway | Quarrel | None:
    """Return what speaks against letting ``newcomer`` in; None if nothing does."""
    return _stranger(state, newcomer) or _quarrel(state, newcomer)


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name with two values; "" if there is none."""
    names = [*one, *(name for name in other if name not in one)]
    return next((name for name in names if one.get(name) != other.get(name)), "")


def _stranger(state: State, newcomer: Hello) -> TurnedAway | None:
    terms, own = state.terms, state.terms.hello
    if newcomer.identity == own.identity:
        return TurnedAway(Refusal.IT_IS_YOU, "", "", "")
    if newcomer.user_id != own.user_id:
        noted = f"it is user {newcomer.user_id}'s, and this job is user {own.user_id}'s"
        return _elsewhere(notices.other_user(terms, newcomer), PLACE_HINT, noted)
    if newcomer.run_id not in {"", terms.run_id}:
        noted = f'it belongs to another job, run id "{notices.shortened(newcomer.run_id)}"'
        hint = PLACE_HINT if own.run_id else RUN_ID_HINT
        return _elsewhere(notices.other_run_id(terms, newcomer), hint, noted)
    if state.phase is Phase.RUNNING or (state.phase is Phase.OVER and not state.quarrel[0]):
        if terms.last_call is not None:
            noted = "the job has begun"
            return TurnedAway(Refusal.GIVE_UP, notices.complete(state), TOO_LATE_HINT, noted)
        noted = f"all {terms.nodes} nodes are there"
        return TurnedAway(Refusal.GIVE_UP, notices.complete(state), "", noted)
    if state.phase is Phase.OVER:
        return TurnedAway(Refusal.GIVE_UP, *state.quarrel, "")
    return None


def _elsewhere(told: str, hint: str, noted: str) -> TurnedAway:
    return TurnedAway(Refusal.TRY_ELSEWHERE, told, hint, noted)


def _quarrel(state: State, newcomer: Hello) -> Quarrel | None:
    terms, own = state.terms, state.terms.hello
    if name := first_difference(own.must, newcomer.must):
        return Quarrel(notices.contradiction(name, own, newcomer), SAME_FLAGS)
    if newcomer.rank is not None and newcomer.rank >= terms.nodes:
        return Quarrel(notices.no_such_rank(newcomer, terms.nodes), SAME_FLAGS)
    if newcomer.rank is not None and newcomer.rank in state.claims:
        return _same_rank(state, newcomer.rank, newcomer)
    if len(state.members) == terms.nodes:
        there = tuple(state.members.values())
        return Quarrel(notices.too_many(terms.nodes, there, newcomer), "")
    if terms.strict and (name := first_difference(own.should, newcomer.should)):
        hint = "--strict-join makes this an error; without it, it is a warning."
        return Quarrel(notices.disagreement(name, own, newcomer), hint)
    return None


def _same_rank(state: State, rank: int, newcomer: Hello) -> Quarrel:
    claimed_by = state.claims[rank]
    claimant = state.members[claimed_by]
    if claimed_by == OWN and claimant.rank is None:
        hint = "--node-rank 0 belongs to the machine that --master-addr names."
        return Quarrel(notices.rank_of_owner(state.terms.place, claimant, newcomer), hint)
    hint = "Give each node its own --node-rank."
    return Quarrel(notices.same_rank(rank, claimant, newcomer), hint)
