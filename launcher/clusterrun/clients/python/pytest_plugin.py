"""pytest's plugin: ``@pytest.mark.ranks(4)`` runs a test's body on 4 ranks.

pytest imports this module in every session (an entry point of the distribution); what costs time is
imported by the first test that has the mark.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from typing import Any

import pytest

MARK = (
    "ranks(n, backend='gloo', **options): run the test's body on n ranks, with a process group of"
    " torch.distributed; backend=None: without one; options: those of clusterrun.launch"
)

_CAUSE = pytest.StashKey[BaseException | None]()
"""A test's: the exception that failed it on a rank; None if there is none, or it can't be unpickled."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", MARK)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a marked test whose body would not run on ranks: it must not pass for that."""
    if item.get_closest_marker("ranks") is None:
        return
    from unittest import TestCase

    if not isinstance(item, pytest.Function) or issubclass(item.cls or object, TestCase):
        pytest.fail("@pytest.mark.ranks is for functions, not for unittest.TestCase", pytrace=False)
    if iscoroutinefunction(item.obj) or isasyncgenfunction(item.obj):
        pytest.fail("@pytest.mark.ranks is not for async functions", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a marked test on its ranks; leave all others to pytest."""
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    count, backend, options = _read(mark)
    for how, reason in _run(pyfuncitem, count, backend, options):
        _raise_outcome(how, reason)
    return True


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show plugins the exception of the failed rank: ``xfail(raises=...)`` compares it.

    What is printed stays the job's report. As the innermost wrapper (``trylast``), this one goes on
    before pytest's own, which reads ``raises``.
    """
    report = yield
    cause = item.stash.get(_CAUSE, None)
    if call.when == "call" and call.excinfo is not None and cause is not None:
        cause = cause.with_traceback(call.excinfo.tb)
        call.excinfo = pytest.ExceptionInfo.from_exception(cause)
    return report


def _run(
    test: pytest.Function, count: int, backend: str | None, options: dict[str, Any]
) -> list[tuple[str, str]]:
    """Run the test's body on its ranks, and return what ``_run_body`` returns on each.

    Raises:
        pytest.fail.Exception: a rank failed, or the body can't be sent to the ranks.

    """
    from clusterrun.clients.python.job import RemoteTraceback, WorkerFailed
    from clusterrun.clients.python.launch import launch
    from clusterrun.errors import UsageError

    uses_torch = backend is not None or "torch" in sys.modules
    imports = ["torch", "pytest"] if uses_torch else ["pytest"]
    options = {"preload": imports, **options}
    taken = signature(test.obj).parameters.keys() & test.funcargs.keys()
    arguments = {name: test.funcargs[name] for name in taken}
    test.stash[_CAUSE] = None
    try:
        with _sent_by_value(test.obj):
            return launch(
                _run_body, (test.obj, backend), arguments, nproc_per_node=count, **options
            )
    except WorkerFailed as failure:
        report = str(failure)
        if not isinstance(failure.__cause__, RemoteTraceback):
            test.stash[_CAUSE] = failure.__cause__
    except UsageError as error:
        report = str(error)
    except pytest.fail.Exception as stopped:
        # pytest-timeout raises it from a signal handler, wherever this process is.
        report = f"{stopped.msg} The ranks were ended."
    # The report has the rank's traceback; pytest's own would show the plugin.
    pytest.fail(report, pytrace=False)


def _read(mark: pytest.Mark) -> tuple[int, str | None, dict[str, Any]]:
    """Return the number of ranks, the backend, and options of ``clusterrun.launch``."""
    options = dict(mark.kwargs)
    backend = options.pop("backend", "gloo")
    if len(mark.args) != 1 or type(mark.args[0]) is not int:
        raise pytest.UsageError(
            "@pytest.mark.ranks takes the number of ranks: @pytest.mark.ranks(4)"
        )
    return mark.args[0], backend, options


@contextmanager
def _sent_by_value(function: Callable[..., object]) -> Iterator[None]:
    """Send the test's module by value: ranks can't import it as pytest does, and rewrite its asserts."""
    import cloudpickle

    module = sys.modules.get(function.__module__)
    registered = cloudpickle.list_registry_pickle_by_value()
    if module is None or module.__name__ in registered:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _run_body(
    function: Callable[..., object], backend: str | None, /, **arguments: object
) -> tuple[str, str]:
    """Run the test's body in a rank; return whether it was skipped or expected to fail, and why."""
    from unittest import SkipTest

    if backend is not None:
        import torch.distributed as dist

        dist.init_process_group(backend)
    # pytest's classes can't be pickled: they say that they are builtins.
    try:
        function(**arguments)
    except (pytest.skip.Exception, SkipTest) as skipped:
        return "skip", f"{skipped}" or "skipped"
    except pytest.xfail.Exception as expected:
        return "xfail", expected.msg or "expected to fail"
    if backend is not None and dist.is_initialized():
        dist.destroy_process_group()
    return "", ""


def _raise_outcome(how: str, reason: str) -> None:
    if how == "skip":
        pytest.skip(reason)
    if how == "xfail":
        pytest.xfail(reason)
