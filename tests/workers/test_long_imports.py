"""Importing before a fork may take long, and is not silent then."""

from launcher.workers.fork_server.preparation import (
    SECONDS_BETWEEN_NOTICES,
    SECONDS_TO_FIRST_NOTICE,
    Notice,
)


def test_when_people_are_told_what_is_imported() -> None:
    """Not of what most jobs import in time, then once, and again after a longer while."""
    notice = Notice(100.0)
    first = 100.0 + SECONDS_TO_FIRST_NOTICE

    due = [
        notice.is_due(at) for at in (first - 1, first, first + 1, first + SECONDS_BETWEEN_NOTICES)
    ]

    assert due == [False, True, False, True]
