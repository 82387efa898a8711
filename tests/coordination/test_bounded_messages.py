"""What travels of fates: what a report needs, in any case little enough for one message."""

from clusterrun.coordination.bounded_messages import done, ended_externally, failing
from clusterrun.coordination.messages import Done, EndedExternally
from clusterrun.domain.outcome import HelperFailed, Interrupted, NodeLost, Succeeded
from clusterrun.planning.worker_count import MAX_WORKERS
from clusterrun.rendezvous.wire.frames import FROM_MEMBERS, MAXIMUM_FRAME, framed

from tests.rendezvous.nodes import fate


def test_ends_travel_as_ages() -> None:
    """Clocks of nodes need not agree."""
    letter = done(0, [fate(0, clock=100.0), fate(1, clock=103.5)], 104.0, None)

    assert [each.age for each in letter.fates] == [4.0, 0.5]


def test_no_age_is_negative() -> None:
    """Whatever clocks do."""
    assert done(0, [fate(0, clock=105.0)], 104.0, None).fates[0].age == 0.0
    assert failing(0, fate(0, 1), -3.0).age == 0.0


def test_the_last_words_of_failures_travel() -> None:
    """Those of successes interest nobody."""
    good, bad = fate(0, tail="loss 0.1", error="{}"), fate(1, 1, tail="Error: x", error="{}")

    letter = done(0, [good, bad], 0.0, None)

    assert [(each.fate.tail, each.fate.error) for each in letter.fates] == [
        ("", ""),
        ("Error: x", "{}"),
    ]


def test_the_longest_of_last_words_fit_into_one_message() -> None:
    """256 workers that all fail, each with the longest tail, in characters of four bytes."""
    tail = "\N{PILE OF POO}" * (16 << 10)
    fates = [fate(rank, 1, tail=tail, error='"' + tail + '"') for rank in range(256)]

    assert len(framed(done(0, fates, 0.0, None))) < MAXIMUM_FRAME
    assert len(framed(failing(0, fates[0], 0.0))) < MAXIMUM_FRAME


def test_the_ends_of_the_most_workers_fit_into_one_message() -> None:
    """Each has the name of its log file and of its host."""
    name = "gpu-node-0123.cluster.example.com"
    log = "/home/user/experiments/logs/20261122-121900-12345/attempt-0/gpu-node-0123-0/rank-{}.err"
    fates = [
        fate(rank, rank % 2, host=name, log=log.format(rank), tail="Error\n" * 60, error="{}")
        for rank in range(MAX_WORKERS)
    ]

    assert len(framed(done(0, fates, 0.0, None))) < MAXIMUM_FRAME


def test_the_end_of_a_tail_is_what_is_kept() -> None:
    """There stands the exception; an error file is kept whole or not at all."""
    long = "x" * (20 << 10)

    letter = failing(0, fate(0, 1, tail=f"{long}ValueError: it", error=f'"{long}"'), 0.0)

    assert letter.fate.tail.endswith("ValueError: it")
    assert len(letter.fate.tail) == 16 << 10
    assert letter.fate.error == ""


def test_a_long_traceback_keeps_both_ends() -> None:
    """The header stands before the exception, whatever else travels with them."""
    frames = "".join(f'  File "train.py", line {line}, in step\n' for line in range(500))
    tail = f"Traceback (most recent call last):\n{frames}ValueError: it"

    letter = failing(0, fate(0, 1, tail=tail), 0.0)

    lines = letter.fate.tail.splitlines()
    assert lines[:2] == tail.splitlines()[:2]
    assert lines[-1] == "ValueError: it"
    assert len(letter.fate.tail) <= 16 << 10


def test_a_path_that_is_no_text_travels_all_the_same() -> None:
    """File names are bytes."""
    letter = failing(0, fate(0, 1, log="/logs/\udcff"), 0.0)

    assert b"/logs/?" in framed(letter)


def test_only_what_came_from_outside_is_an_external_cause() -> None:
    """Other reasons follow from what the nodes report."""
    assert done(0, [], 0.0, Interrupted(2)).external_cause == Interrupted(2)
    assert done(0, [], 0.0, HelperFailed("relay", "exited", 0)).external_cause is not None
    assert done(0, [], 0.0, NodeLost(0, "n0")).external_cause is None
    assert done(0, [], 0.0, Succeeded()).external_cause is None


def test_the_end_of_a_helper_travels_in_one_line() -> None:
    """An interpreter that crashes as it starts prints several."""
    crash = "was killed by SIGSEGV:\n    Fatal Python error\x1b[0m\n    no frame"
    reason = HelperFailed("fork server", crash, 11)

    sent = framed(ended_externally(0, reason)) + framed(done(0, [], 0.0, reason))

    how = "was killed by SIGSEGV: Fatal Python error?[0m no frame"
    travels = HelperFailed("fork server", how, 11)
    heard = list(FROM_MEMBERS.take(bytearray(sent)))
    assert heard == [EndedExternally(0, travels), Done(0, (), travels)]
