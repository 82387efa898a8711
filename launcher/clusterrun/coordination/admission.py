"""Whether a newcomer may join, and the messages to it and to node 0 if it may not."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.coordination import job_notices
from clusterrun.coordination.job_state import JobPhase, JobState
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import loss_notices
from clusterrun.domain.messages import Hello, Refusal

SAME_FLAGS = "Run the same command on every node, each with its own --node-rank."
RUN_ID_HINT = "Give all nodes the same --run-id, or none."
TOO_LATE_HINT = (
    "No node can join once the job has started; --last-call-timeout makes the job wait longer."
)
PLACE_HINT = "Two jobs at once need two ports: give each its own --master-port."


class Rejection(Struct, frozen=True):
    """The newcomer does not belong to this job, which goes on waiting."""

    refusal: Refusal
    text: str
    """For the newcomer."""
    hint: str
    notice: str
    """For node 0, after the newcomer's name; "" for none."""


class Contradiction(Struct, frozen=True):
    """Nodes of this job contradict each other, and it cannot begin."""

    text: str
    hint: str

    @property
    def rejection(self) -> Rejection:
        """The same as a reason to refuse the newcomer alone."""
        return Rejection(Refusal.GIVE_UP, self.text, self.hint, self.text)


def objection(state: JobState, newcomer: Hello) -> Rejection | Contradiction | None:
    """Return why ``newcomer`` may not join; None if it may."""
    return _rejection(state, newcomer) or _contradiction(state, newcomer)


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name with two values; "" if there is none."""
    if one == other:
        # As for most newcomers of a large job.
        return ""
    names = [*one, *(name for name in other if name not in one)]
    return next((name for name in names if one.get(name) != other.get(name)), "")


def _rejection(state: JobState, newcomer: Hello) -> Rejection | None:
    terms, own = state.terms, state.own_hello
    if newcomer.identity == own.identity:
        return Rejection(Refusal.IT_IS_YOU, "", "", "")
    if newcomer.user_id != own.user_id:
        notice = f"it runs as user {newcomer.user_id}, this job as user {own.user_id}"
        text = job_notices.other_user(terms, own, newcomer)
        return Rejection(Refusal.TRY_ELSEWHERE, text, PLACE_HINT, notice)
    if newcomer.run_id not in {"", terms.run_id}:
        notice = f'it belongs to another job, run id "{job_notices.shortened(newcomer.run_id)}"'
        hint = PLACE_HINT if own.run_id else RUN_ID_HINT
        text = job_notices.other_run_id(terms, newcomer)
        return Rejection(Refusal.TRY_ELSEWHERE, text, hint, notice)
    return _too_late(state)


def _too_late(state: JobState) -> Rejection | None:
    if state.phase is JobPhase.GATHERING:
        return None
    if state.phase is not JobPhase.OVER and state.terms.reforming.lives_on:
        return _no_more_may_wait(state)
    text, hint = state.contradiction
    if text:
        return Rejection(Refusal.GIVE_UP, text, hint, "")
    text = job_notices.has_started(state)
    if state.terms.last_call is not None:
        return Rejection(Refusal.GIVE_UP, text, TOO_LATE_HINT, "the job has started")
    notice = f"all {state.terms.nodes} nodes have joined"
    return Rejection(Refusal.GIVE_UP, text, "", notice)


def _no_more_may_wait(state: JobState) -> Rejection | None:
    """Return why a newcomer may not wait for a place; each node may come back once at a time."""
    rules = state.terms.reforming
    most = max(state.terms.nodes + rules.spares, rules.most)
    if len(state.waiting) < most:
        return None
    text = loss_notices.enough_wait(state)
    return Rejection(Refusal.GIVE_UP, text, "", f"{most} nodes wait already")


def _contradiction(state: JobState, newcomer: Hello) -> Contradiction | None:
    own = state.own_hello
    if name := first_difference(own.must, newcomer.must):
        return Contradiction(job_notices.two_values(name, own, newcomer), SAME_FLAGS)
    if state.phase is JobPhase.GATHERING and (why := _no_place(state, newcomer)):
        return why
    if newcomer.rank == 0:
        # It is node 0 of another job with the same options, and only asks whether it is the only one.
        return _same_rank(state, 0, newcomer)
    return None


def _no_place(state: JobState, newcomer: Hello) -> Contradiction | None:
    terms = state.terms
    if newcomer.rank is not None and newcomer.rank >= terms.nodes:
        return Contradiction(job_notices.no_such_rank(newcomer, terms.nodes), SAME_FLAGS)
    if newcomer.rank is not None and newcomer.rank in state.members.by_rank:
        return _same_rank(state, newcomer.rank, newcomer)
    if len(state.members) == terms.nodes:
        joined = state.members.hellos.values()
        return Contradiction(job_notices.too_many(terms.nodes, joined, newcomer), "")
    return None


def _same_rank(state: JobState, rank: int, newcomer: Hello) -> Contradiction:
    connection = state.members.by_rank[rank]
    member = state.members.hellos[connection]
    if connection == OWN and member.rank is None:
        hint = "--node-rank 0 belongs to the machine that --master-addr names."
        return Contradiction(job_notices.rank_of_owner(state.terms.place, member, newcomer), hint)
    hint = "Give each node its own --node-rank."
    return Contradiction(job_notices.same_rank(rank, member, newcomer), hint)
