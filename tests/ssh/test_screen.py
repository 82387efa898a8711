"""What several hosts print, on one screen."""

import tracemalloc

from clusterrun.clients.ssh.console import HostsConsole
from clusterrun.descriptor_output import DescriptorOutput


class Printed:
    """A screen that keeps what is written."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.screen = HostsConsole(
            DescriptorOutput(1, self._writer(self.out)), DescriptorOutput(2, self._writer(self.err))
        )

    @staticmethod
    def _writer(kept: bytearray):  # type: ignore[no-untyped-def]  # noqa: ANN205
        def write(data: bytearray) -> int:
            kept.extend(data)
            return len(data)

        return write


def test_a_notice_of_several_hosts_is_printed_once() -> None:
    """One that differs in a word is another."""
    printed = Printed()

    for rank in range(3):
        printed.screen.notice(rank, b"clusterrun: no\n")
    printed.screen.notice(1, b"clusterrun: no, instead\n")

    assert printed.err == b"clusterrun: no\nclusterrun: no, instead\n"


def test_a_host_may_say_the_same_again() -> None:
    """It is told twice that it is to stop: both are answered."""
    printed = Printed()

    for _ in range(2):
        printed.screen.notice(0, b"clusterrun: stopping 2 workers\n")
        printed.screen.notice(1, b"clusterrun: stopping 2 workers\n")

    assert printed.err.count(b"stopping") == 2


def test_what_workers_print_is_never_left_out() -> None:
    """Even what looks like a notice."""
    printed = Printed()

    for _ in range(2):
        printed.screen.write(2, b"clusterrun: \n")
        printed.screen.write(1, b"clusterrun: \n")

    assert printed.out == b"clusterrun: \n" * 2
    assert printed.err == b"clusterrun: \n" * 2


def test_a_notice_does_nothing_to_a_terminal() -> None:
    """Another program may run on a host in the command's place."""
    printed = Printed()

    printed.screen.notice(0, "clusterrun: \x1b]0;title\x07\x9b2J\u202egnitrats\u2028\n".encode())
    printed.screen.notice(1, b"clusterrun: \xff\xed\xa0\x80\r\n")

    assert printed.err.decode() == (
        "clusterrun: ?]0;title??2J?gnitrats?\nclusterrun: \ufffd\ufffd\ufffd\ufffd?\n"
    )


def test_any_number_of_notices_needs_no_memory() -> None:
    """They may differ, all of them."""
    screen = HostsConsole(DescriptorOutput(1, len), DescriptorOutput(2, len))
    tracemalloc.start()
    try:
        for number in range(20_000):
            screen.notice(0, b"clusterrun: %d %s\n" % (number, b"x" * 1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20
