"""Messages about calls that can't be pickled."""

import threading

import pytest
from clusterrun import UsageError
from clusterrun.clients.python.call import FunctionCall, pickle_call

GUARD = threading.Lock()


def enclosing_a_lock() -> FunctionCall:
    lock = threading.Lock()
    return FunctionCall(lambda: lock, (), {})


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (FunctionCall(max, (1, GUARD), {}), r"argument 1 \(_thread.lock\)"),
        (FunctionCall(max, (), {"key": GUARD}), r"argument key \(_thread.lock\)"),
        (
            enclosing_a_lock(),
            r"lock \(_thread.lock\), which enclosing_a_lock.<locals>.<lambda> uses,",
        ),
        (FunctionCall(GUARD.acquire, (), {}), "lock.acquire"),
    ],
)
def test_value_that_cannot_be_pickled_is_named(call: FunctionCall, named: str) -> None:
    with pytest.raises(UsageError, match=f"{named}.* can't be pickled.*cannot pickle"):
        pickle_call(call)
