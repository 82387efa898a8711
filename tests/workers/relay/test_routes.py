"""Where each worker's output goes, and the prefix of its lines."""

from pathlib import Path

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.job import values
from clusterrun.job.job import TaskLayout
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.workers.relay.routes import Destination, LogLayout, Routes
from msgspec.structs import replace

from tests.plans import job, plan_of, worker_of

LOGS = LogLayout(Path("/logs"), "run-7", one_file=False, torchrun_folder="", kept_attempts=0)
EVERYWHERE = "both"
SCREEN = "screen"
FILE = "file"
NOWHERE = "nowhere"

TASKS = TaskLayout(GlobalRank(5), 8, LocalRank(1), 4, NodeRank(1), 2)
NO_LOCAL_RANKS = "there is no local rank 5-6 on this node; its local ranks go from 0 to 1"


def all_of(number: int) -> values.StreamChoice:
    """Return the streams ``number`` of all local ranks."""
    return values.StreamChoice(values.Std(number), {})


def some(**named: int) -> values.StreamChoice:
    """Return the streams of local ranks: ``some(r0=3, r12=1)``."""
    return values.StreamChoice(
        values.Std.NONE, {int(name[1:]): values.Std(value) for name, value in named.items()}
    )


def ranks(*numbers: int) -> values.RankSet:
    return values.RankSet(tuple((number, number) for number in numbers))


def worker(local_rank: int, rank: int | None = None) -> WorkerPlan:
    """Return a worker of a node; the global rank is the local one unless given."""
    return worker_of(local_rank, 0 if rank is None else rank - local_rank)


def plan(**world: object) -> NodePlan:
    """Return a node's plan, with some values of its world changed."""
    usual = plan_of(1)
    return replace(usual, world=replace(usual.world, **world))


def destinations(routes: Routes, worker: WorkerPlan) -> list[str]:
    """Return in words where standard output and error go."""
    return [_word(to) for to in routes.destinations(plan(), worker)]


def _word(to: Destination) -> str:
    if to.log is None:
        return SCREEN if to.shown else NOWHERE
    return EVERYWHERE if to.shown else FILE


@pytest.mark.parametrize(
    ("options", "of_rank_0", "of_rank_12"),
    [
        ({}, [EVERYWHERE, EVERYWHERE], [EVERYWHERE, EVERYWHERE]),
        ({"tee": all_of(0)}, [SCREEN, SCREEN], [SCREEN, SCREEN]),
        ({"tee": all_of(1)}, [EVERYWHERE, SCREEN], [EVERYWHERE, SCREEN]),
        ({"tee": all_of(3)}, [EVERYWHERE, EVERYWHERE], [EVERYWHERE, EVERYWHERE]),
        ({"redirects": all_of(2)}, [SCREEN, FILE], [SCREEN, FILE]),
        ({"redirects": all_of(3)}, [FILE, FILE], [FILE, FILE]),
        ({"redirects": some(r12=1)}, [SCREEN, SCREEN], [FILE, SCREEN]),
        ({"redirects": all_of(3), "tee": some(r0=3)}, [EVERYWHERE, EVERYWHERE], [FILE, FILE]),
        ({"redirects": all_of(1), "tee": all_of(2)}, [FILE, EVERYWHERE], [FILE, EVERYWHERE]),
        ({"local_ranks_filter": ranks(0)}, [EVERYWHERE, EVERYWHERE], [FILE, FILE]),
        ({"ranks": ranks(12)}, [FILE, FILE], [EVERYWHERE, EVERYWHERE]),
        ({"tee": all_of(1), "ranks": ranks(0)}, [EVERYWHERE, SCREEN], [FILE, NOWHERE]),
        ({"ranks": ranks(0), "local_ranks_filter": ranks(12)}, [FILE, FILE], [FILE, FILE]),
    ],
)
def test_destinations_are_those_of_torchrun(
    options: dict[str, object], of_rank_0: list[str], of_rank_12: list[str]
) -> None:
    """Redirected: to the file only; teed: also printed; hidden: never printed."""
    routes = Routes(job(**options), LOGS)

    assert destinations(routes, worker(0)) == of_rank_0
    assert destinations(routes, worker(12)) == of_rank_12


@pytest.mark.parametrize("options", [{}, {"redirects": all_of(3)}, {"tee": all_of(3)}])
def test_without_a_folder_everything_is_printed(options: dict[str, object]) -> None:
    """``--log-dir /dev/null``: there is no file to redirect to."""
    assert destinations(Routes(job(**options), None), worker(0)) == [SCREEN, SCREEN]


def test_redirected_stream_is_printed_if_its_file_fails() -> None:
    """Unless the rank is hidden."""
    routes = Routes(job(redirects=all_of(1), ranks=ranks(0)), LOGS)

    shown = [routes.destinations(plan(), worker(rank))[0].shown_if_log_fails for rank in (0, 1)]

    assert shown == [True, False]
    assert not routes.destinations(plan(), worker(0))[1].shown_if_log_fails


def test_filtered_files_of_teed_streams() -> None:
    """For printed streams; like torchrun, one file on each node for all of its ranks."""
    options = {"duplicate_stdout_filters": ("loss",), "tee": some(r0=3, r1=2), "ranks": ranks(0, 1)}
    routes = Routes(job(**options), LOGS)
    node = plan(attempt=2, node_rank=NodeRank(3))

    filtered = [routes.destinations(node, worker(rank))[0].filtered for rank in range(3)]

    assert filtered == [Path("/logs/run-7/attempt-2/node7-3/filtered_stdout.log"), None, None]
    assert routes.destinations(node, worker(0))[1].filtered is None


@pytest.mark.parametrize(
    ("options", "relayed"),
    [
        ({}, values.Std.NONE),
        ({"ranks": ranks(1)}, values.Std.ALL),
        ({"log_line_prefix_template": "${rank}: "}, values.Std.ALL),
    ],
)
def test_streams_that_must_go_through_the_relay(
    options: dict[str, object], relayed: values.Std
) -> None:
    """A single worker writes to the terminal itself unless an option needs the relay."""
    assert Routes(job(**options), None).relayed(plan(), worker(0)) == relayed


@pytest.mark.parametrize("number", range(4))
def test_redirecting_one_stream_leaves_the_other_on_the_terminal(number: int) -> None:
    routes = Routes(job(redirects=all_of(number)), LOGS)

    assert routes.relayed(plan(), worker(0)) == values.Std(number)


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name} ${rank}/$local_rank]:", "[trainer 9/1]:"),
        ("${host}-${node_rank} ", "node7-0 "),
        ("${hostname}:${rank}: ", "node7.cluster:9: "),
        ("$5 ${nothing} $", "$5 ${nothing} $"),
    ],
)
def test_prefix_by_template(template: str, prefix: str) -> None:
    """Torchrun's template; unknown names stay as they are."""
    node = replace(plan(node_rank=NodeRank(0)), host="node7.cluster", env={"ROLE_NAME": "trainer"})

    routes = Routes(job(log_line_prefix_template=template), None)

    assert routes.prefix(node, worker(1, rank=9)) == prefix


def test_local_rank_counts_the_tasks_of_the_node() -> None:
    """Each task has one worker, and LOCAL_RANK may be 0 in all."""
    options = {"tasks": TASKS, "log_line_prefix_template": "${local_rank}"}

    routes = Routes(job(local_ranks_filter=ranks(1), **options), LOGS)

    assert destinations(routes, worker(0, rank=5)) == [EVERYWHERE, EVERYWHERE]
    assert routes.prefix(plan(), worker(0, rank=5)) == "1"


def test_hidden_by_names_the_option() -> None:
    """The report quotes it."""
    routes = Routes(job(ranks=ranks(0, 9), local_ranks_filter=values.RankSet(((0, 1),))), None)

    assert routes.hidden_by(0, 0) == routes.hidden_by(9, 1) == ""
    assert routes.hidden_by(9, 2) == "the test 0-1"
    assert routes.hidden_by(8, 0) == "the test 0,9"
    assert routes.hidden_by(9, None) == ""


@pytest.mark.parametrize(
    ("options", "size", "warnings"),
    [
        (
            {"ranks": ranks(8), "local_ranks_filter": ranks(4, 5)},
            (8, 4),
            [
                "there is no rank 8, so no rank's output is printed",
                "there is no local rank 4,5 on this node, so no rank's output is printed",
            ],
        ),
        ({"ranks": ranks(8), "local_ranks_filter": ranks(4, 5)}, (9, 5), []),
        ({"redirects": some(r0=3, r5=3, r6=1)}, (2, 2), [NO_LOCAL_RANKS]),
        ({"tee": some(r0=3, r5=3, r6=1)}, (2, 2), [NO_LOCAL_RANKS]),
        ({"redirects": some(r0=3, r5=3, r6=1)}, (7, 7), []),
        (
            {"local_ranks_filter": ranks(1)},
            (1, 1),
            ["there is no local rank 1 on this node, so no rank's output is printed"],
        ),
        # Each task has one worker.
        ({"tasks": TASKS, "local_ranks_filter": ranks(1)}, (8, 1), []),
    ],
)
def test_warning_for_ranks_that_do_not_exist(
    options: dict[str, object], size: tuple[int, int], warnings: list[str]
) -> None:
    """Otherwise nothing would be printed or written, without a reason."""
    node = replace(plan(size=size[0], local_size=size[1]), workers=plan_of(size[1]).workers)

    found = list(Routes(job(**options), LOGS).warnings(node))

    assert found == [f"the test: {warning}" for warning in warnings]


def test_node_0_links_to_the_last_run() -> None:
    """When the first attempt starts."""
    routes = Routes(job(), LOGS)

    assert list(routes.links(plan(node_rank=NodeRank(0)))) == [(Path("/logs/latest"), "run-7")]
    assert list(routes.links(plan(node_rank=NodeRank(1)))) == []
    assert list(routes.links(plan(node_rank=NodeRank(0), attempt=1))) == []
    assert list(Routes(job(), None).links(plan())) == []
    as_torchrun = replace(LOGS, torchrun_folder="run-7_00c0ffee")
    assert list(Routes(job(), as_torchrun).links(plan(node_rank=NodeRank(0)))) == []


@pytest.mark.parametrize("options", [{"local_ranks_filter": ranks(0)}, {"tee": some(r0=3)}])
def test_no_warning_on_a_node_of_services_alone(options: dict[str, object]) -> None:
    """Its services have local ranks, and print."""
    assert list(Routes(job(**options), LOGS).warnings(plan(size=2, local_size=0))) == []
