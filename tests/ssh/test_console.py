"""The output of several hosts on one console."""

import tracemalloc

from clusterrun.clients.ssh.console import HostsConsole
from clusterrun.descriptor_output import DescriptorOutput


class RecordedConsole:
    """A console whose output is kept in memory."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.console = HostsConsole(
            DescriptorOutput(1, self._writer(self.out)), DescriptorOutput(2, self._writer(self.err))
        )

    @staticmethod
    def _writer(kept: bytearray):  # type: ignore[no-untyped-def]  # noqa: ANN205
        def write(data: bytearray) -> int:
            kept.extend(data)
            return len(data)

        return write


def test_equal_notices_of_several_hosts_are_printed_once() -> None:
    recorded = RecordedConsole()

    for rank in range(3):
        recorded.console.notice(rank, b"clusterrun: no\n")
    recorded.console.notice(1, b"clusterrun: no, instead\n")

    assert recorded.err == b"clusterrun: no\nclusterrun: no, instead\n"


def test_repeated_notice_of_one_host_is_printed_again() -> None:
    recorded = RecordedConsole()

    for _ in range(2):
        recorded.console.notice(0, b"clusterrun: stopping 2 workers\n")
        recorded.console.notice(1, b"clusterrun: stopping 2 workers\n")

    assert recorded.err.count(b"stopping") == 2


def test_output_of_workers_is_never_dropped() -> None:
    """Not even lines that look like a notice."""
    recorded = RecordedConsole()

    for _ in range(2):
        recorded.console.write(2, b"clusterrun: \n")
        recorded.console.write(1, b"clusterrun: \n")

    assert recorded.out == b"clusterrun: \n" * 2
    assert recorded.err == b"clusterrun: \n" * 2


def test_control_characters_in_notice_are_replaced() -> None:
    """A host may run a program other than clusterrun."""
    recorded = RecordedConsole()

    recorded.console.notice(0, "clusterrun: \x1b]0;title\x07\x9b2J\u202egnitrats\u2028\n".encode())
    recorded.console.notice(1, b"clusterrun: \xff\xed\xa0\x80\r\n")

    assert recorded.err.decode() == (
        "clusterrun: ?]0;title??2J?gnitrats?\nclusterrun: \ufffd\ufffd\ufffd\ufffd?\n"
    )


def test_many_different_notices_use_bounded_memory() -> None:
    console = HostsConsole(DescriptorOutput(1, len), DescriptorOutput(2, len))
    tracemalloc.start()
    try:
        for number in range(20_000):
            console.notice(0, b"clusterrun: %d %s\n" % (number, b"x" * 1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20
