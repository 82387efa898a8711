"""The timer that wants a suspension before the scheduler ends the job."""

import selectors
from contextlib import closing

from tests.control.door import (
    NEVER,
    EndTimer,
    SuspensionWanted,
)


def test_it_wants_one_suspension_once_it_is_due() -> None:
    """Its descriptor stays silent: the loop calls it for the time alone."""
    with closing(EndTimer(5.0, "the end")) as timer, selectors.DefaultSelector() as selector:
        selector.register(timer, selectors.EVENT_READ)

        early, due = list(timer.events(4.9)), list(timer.events(5.0))

        assert (early, due) == ([], [SuspensionWanted("the end", 5.0)])
        assert timer.due == NEVER
        assert list(timer.events(6.0)) == []
        assert selector.select(0) == []
