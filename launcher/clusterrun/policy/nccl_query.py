"""The coordinator's query to NCCL: about a hang that is reported, or to find one."""

from clusterrun.policy.answers import decode_answer
from clusterrun.policy.members import Node
from clusterrun.policy.nccl import NcclState
from clusterrun.policy.outcome import Hung
from clusterrun.policy.queries import SECONDS, Answer, EndOfAnswers, Query, Topic

QUERY = Query(0, Topic.NCCL, SECONDS[Topic.NCCL], rank=0)
"""To the node of rank 0, where NCCL knows the counts of all ranks."""


class NcclQuery:
    """A query, and its answer.

    Args:
        hung: a hang for which the attempt is stopped after the answer is printed.
        is_watch: the query looks for a hang, so its answer is not printed.

    """

    def __init__(self, hung: Hung | None = None, *, is_watch: bool = False) -> None:
        self.hung, self.is_watch = hung, is_watch
        self.state = NcclState()
        self.is_answered = False

    def add_answer(self, _node: Node, answer: Answer) -> bool:
        state = decode_answer(answer, NcclState)
        if isinstance(state, NcclState):
            self.state = state
            return True
        return bool(answer.problem)

    def end(self, _end: EndOfAnswers) -> None:
        self.is_answered = True
