"""Queries of this node and of others are answered in bounded time with bounded work."""

from collections.abc import Iterable

import pytest
from clusterrun.loop import NEVER
from clusterrun.network import query_service
from clusterrun.policy import events, messages, queries
from msgspec.msgpack import decode

QUERY = queries.Query(1, queries.Topic.RANKS, 1.2)
MISSING = (queries.MissingNode(2, "n2", "does not answer"),)


def of_node(rank: int, number: int = 1) -> queries.Answer:
    return queries.Answer(number, rank, f"n{rank}", b"ranks")


class Service:
    """That of node 1, and what it sends and asks; the test answers for this node."""

    def __init__(self) -> None:
        self.sent: list[messages.AgentMessage] = []
        self.asked: list[tuple[queries.Query, query_service.OnAnswer]] = []
        self.replies: list[queries.Answers] = []
        self.concerned = True
        ports = query_service.AgentCallbacks(
            self._send, self._answer, lambda _: self.concerned, lambda: "n0"
        )
        self.service = query_service.QueryService(ports)

    def _send(self, message: messages.AgentMessage) -> tuple[()]:
        self.sent.append(message)
        return ()

    def _answer(
        self, query: queries.Query, then: query_service.OnAnswer, _now: float
    ) -> Iterable[events.Event]:
        self.asked.append((query, then))
        return ()

    def ask(self, now: float = 0.0, query: queries.Query = QUERY) -> None:
        """Have a user of this node ask."""
        list(self.service.ask(query, self._reply, now))

    def answer(self) -> None:
        """Give this node's answer to what was asked last."""
        query, then = self.asked[-1]
        list(then(of_node(1, query.number)))

    def handle(self, message: messages.QueryMessage, now: float = 0.0) -> None:
        list(self.service.take(events.QueryReceived(message, now)))

    def wait(self, now: float) -> None:
        list(self.service.events(now))

    def _reply(self, data: bytes) -> None:
        self.replies.append(decode(data, type=queries.Answers))


@pytest.fixture
def service() -> Service:
    return Service()


def test_size_of_kept_answers_is_limited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 may send any number."""
    monkeypatch.setattr(query_service, "MAX_ANSWER_BYTES", 10 * query_service.ANSWER_OVERHEAD)
    service.ask()
    for _ in range(100):
        service.handle(of_node(0))
    service.answer()
    service.handle(queries.EndOfAnswers(1))

    [reply] = service.replies
    assert 2 <= len(reply.answers) <= 10


def test_query_gets_the_answers_of_all_nodes(service: Service) -> None:
    """In the order of their ranks; missing nodes are listed."""
    end = queries.EndOfAnswers(1, MISSING, 0, ("n7",))
    service.ask()
    service.answer()
    service.handle(of_node(0))
    before = list(service.replies)
    service.handle(end)

    assert service.sent == [QUERY]
    assert before == []
    assert service.replies == [queries.Answers((of_node(0), of_node(1)), end)]
    assert service.service.due == NEVER


def test_own_answer_is_waited_for(service: Service) -> None:
    service.ask()
    service.handle(queries.EndOfAnswers(1))
    before = list(service.replies)
    service.answer()

    assert before == []
    assert [each.answers for each in service.replies] == [(of_node(1),)]


def test_query_about_other_nodes_gets_no_own_answer(service: Service) -> None:
    """For example about a rank that runs on another node."""
    service.concerned = False
    service.ask()
    service.handle(queries.EndOfAnswers(1))

    assert service.asked == []
    assert [each.answers for each in service.replies] == [()]


def test_query_about_an_own_rank_is_not_sent_on(service: Service) -> None:
    """The coordinator may be stopped, and the user would wait for it."""
    query = queries.Query(1, queries.Topic.NCCL, 22.0, rank=3)

    service.ask(query=query)
    before = list(service.replies)
    service.answer()

    assert (service.sent, before) == ([], [])
    assert service.replies == [queries.Answers((of_node(1),), queries.EndOfAnswers(1))]
    assert service.service.due == NEVER


def test_query_of_another_node_is_answered_to_the_coordinator(service: Service) -> None:
    """Under the coordinator's number."""
    service.handle(queries.Query(9, queries.Topic.RANKS, 1.2))
    service.answer()

    assert service.sent == [of_node(1, 9)]


@pytest.mark.parametrize("answers", [True, False])
def test_query_finishes_at_its_deadline(service: Service, answers: bool) -> None:
    """A coordinator that does not answer is listed as missing; later answers are dropped."""
    service.ask()
    if answers:
        service.answer()
    assert service.service.due == QUERY.seconds + query_service.SECONDS_FOR_COORDINATOR
    service.wait(service.service.due)
    service.answer()
    for late in (of_node(0), queries.EndOfAnswers(1)):
        service.handle(late, 2.0)

    [reply] = service.replies
    assert reply.answers == ((of_node(1),) if answers else ())
    assert [(each.node_rank, each.host) for each in reply.end.missing] == [(0, "n0")]


def test_equal_queries_share_one_answer(service: Service) -> None:
    """There is one query to this node and one to the coordinator."""
    for _ in range(1000):
        service.ask()
    service.answer()
    service.handle(queries.EndOfAnswers(1))

    assert (len(service.sent), len(service.asked), len(service.replies)) == (1, 1, 1000)


def test_queries_in_quick_succession_wait(service: Service) -> None:
    """For a tenth of a second, and until others have ended."""
    for number in range(1, query_service.MAX_OPEN_QUERIES + 1):
        service.ask(number * 0.01)
        service.answer()
        service.handle(queries.EndOfAnswers(number), number * 0.01)
    assert len(service.sent) == 1
    assert service.service.due == 0.01 + query_service.SECONDS_BETWEEN_QUERIES
    service.wait(service.service.due)

    assert len(service.sent) == 2


def test_number_of_open_queries_is_limited(service: Service) -> None:
    """Others wait for one to end."""
    service.concerned = False
    for rank in range(query_service.MAX_OPEN_QUERIES + 1):
        service.ask(float(rank), queries.Query(1, queries.Topic.STACKS, 60.0, rank))
    before = len(service.sent)
    service.handle(queries.EndOfAnswers(query_service.MAX_OPEN_QUERIES), 9.0)

    assert (before, len(service.sent)) == (
        query_service.MAX_OPEN_QUERIES,
        query_service.MAX_OPEN_QUERIES + 1,
    )
