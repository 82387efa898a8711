"""Which modules a plan preloads, and why it leaves the others to each worker."""

import pytest
from clusterrun.workers.fork_server.preloading import packages, script_walk
from clusterrun.workers.fork_server.preloading.plan import PreloadPlan, plan_preload

from tests.workers.fork_server_bench import request_to_prepare

NOTHING_SLOW = "the script imports nothing that is slow to import"
OBSTACLE = "train.py:3 sets OMP_NUM_THREADS before torch is imported"


def walked(*names: str) -> script_walk.ScriptWalk:
    """Return the walk of a script with these imports before its first side effect."""
    walk = script_walk.ScriptWalk()
    walk.preloadable = [packages.Import(name) for name in names]
    return walk


def with_torch_later(*names: str) -> script_walk.ScriptWalk:
    """Return the walk of a script that imports torch after its first side effect."""
    walk = walked(*names)
    walk.first_side_effect = "train.py:2"
    walk.imports_torch = True
    return walk


def planned(
    walk: script_walk.ScriptWalk,
    *,
    preload: str | tuple[str, ...] = "auto",
    workers: int = 8,
    why_reexecuted: str | None = None,
) -> PreloadPlan:
    return plan_preload(request_to_prepare(preload=preload, workers=workers), walk, why_reexecuted)


@pytest.mark.parametrize(
    ("names", "why_spawn"),
    [
        (["os", "numpy", "json", "torch.nn"], None),
        (["yaml", "torch"], None),
        (["yaml", "tqdm"], NOTHING_SLOW),
        (["os"], NOTHING_SLOW),
        ([], NOTHING_SLOW),
    ],
)
def test_leading_imports_are_preloaded_if_one_is_slow(
    names: list[str], why_spawn: str | None
) -> None:
    walk = walked(*names)
    walk.left_to_workers = [("torch_geometric", "it uses a GPU when it is imported")]

    plan = planned(walk)

    assert (plan.names, plan.why_spawn) == (names, why_spawn)
    assert plan.left_to_workers == walk.left_to_workers
    assert (plan.hides_torch, plan.not_preloaded, plan.is_verified) == (False, None, True)


def test_torch_imported_after_side_effect_is_hidden() -> None:
    """It is imported after the others, with the variables that the script sets before."""
    walk = with_torch_later("os", "yaml")
    walk.settings = [("OMP_NUM_THREADS", "1", False)]

    plan = planned(walk)

    assert (plan.names, plan.hides_torch) == (["os", "yaml", "torch"], True)
    assert plan.settings == [("OMP_NUM_THREADS", "1", False)]
    assert (plan.why_spawn, plan.not_preloaded) == (None, None)


@pytest.mark.parametrize("is_cached", [False, True])
def test_obstacle_leaves_torch_to_workers(*, is_cached: bool) -> None:
    """Another slow module is preloaded."""
    walk, other = with_torch_later("os"), with_torch_later("pandas")
    if not is_cached:
        walk.obstacle = other.obstacle = OBSTACLE
    why_reexecuted = OBSTACLE if is_cached else None

    alone = planned(walk, why_reexecuted=why_reexecuted)
    beside = planned(other, why_reexecuted=why_reexecuted)

    assert (alone.hides_torch, alone.why_spawn) == (False, OBSTACLE)
    assert (beside.names, beside.why_spawn) == (["pandas"], None)
    assert {(c.not_preloaded, c.why_not_preloaded) for c in (alone, beside)} == {
        ("torch", OBSTACLE)
    }


@pytest.mark.parametrize(
    ("walk", "obstacle", "cached", "why"),
    [
        pytest.param(
            with_torch_later(), OBSTACLE, "a logger", OBSTACLE, id="text before the cache"
        ),
        pytest.param(walked("torch"), None, OBSTACLE, None, id="leading torch is preloaded"),
    ],
)
def test_reason_in_the_cache(
    walk: script_walk.ScriptWalk, obstacle: str | None, cached: str, why: str | None
) -> None:
    walk.obstacle = obstacle

    plan = planned(walk, why_reexecuted=cached)

    assert (plan.why_not_preloaded, plan.names) == (why, [] if why else ["torch"])


def test_slow_package_after_side_effect_is_reported() -> None:
    walk = walked("os")
    walk.first_side_effect, walk.slow_after_side_effect = "train.py:2", ["numpy", "pandas"]

    plan = planned(walk)

    why = "train.py:2 may have side effects before numpy is imported"
    assert (plan.not_preloaded, plan.why_not_preloaded, plan.why_spawn) == ("numpy", why, why)


@pytest.mark.parametrize("walk", [with_torch_later(), walked("torch")])
def test_slow_package_beside_torch_is_not_reported(walk: script_walk.ScriptWalk) -> None:
    """Torch takes most of the time."""
    walk.first_side_effect, walk.slow_after_side_effect = "train.py:2", ["pandas"]

    plan = planned(walk)

    assert (plan.not_preloaded, plan.why_spawn, plan.names) == (None, None, ["torch"])


@pytest.mark.parametrize(
    ("walk", "unread", "workers", "why"),
    [
        (walked("os"), "own.py can't be read", 8, "own.py can't be read"),
        (walked("torch"), None, 1, "with a single worker there are no imports to share"),
        (with_torch_later(), None, 1, "with a single worker there are no imports to share"),
    ],
)
def test_worker_is_spawned(
    walk: script_walk.ScriptWalk, unread: str | None, workers: int, why: str
) -> None:
    walk.unread = unread

    assert planned(walk, workers=workers).why_spawn == why


def test_script_with_only_stdlib_is_forked_without_imports() -> None:
    """That is faster than an interpreter for each worker."""
    walk = script_walk.ScriptWalk()
    walk.read_script(b"import os, json", "script.py")

    plan = planned(walk)

    assert ([each.name for each in walk.preloadable], plan.imports) == (["os", "json"], [])
    assert plan.why_spawn is None


@pytest.mark.parametrize("workers", [1, 8])
def test_named_modules_are_preloaded(workers: int) -> None:
    """Whatever the script does, and even for one worker."""
    walk = with_torch_later("numpy")
    walk.obstacle = OBSTACLE

    plan = planned(walk, preload=("mine", "torch"), workers=workers)

    assert (plan.names, plan.hides_torch, plan.is_verified) == (["mine", "torch"], False, False)
    assert (plan.why_spawn, plan.not_preloaded, plan.left_to_workers) == (None, None, [])


def test_preload_none() -> None:
    plan = planned(script_walk.ScriptWalk(), preload="none")

    assert (plan.names, plan.why_spawn, plan.is_verified) == ([], None, True)


AND_LATER = " and what is imported after it"


@pytest.mark.parametrize(
    ("leading", "hides_torch", "count", "kept", "removed", "not_preloaded"),
    [
        ("os numpy", True, 3, "os numpy torch", "torch._dynamo", None),
        ("os numpy", True, 2, "os numpy", "torch", "torch"),
        ("os numpy", True, 1, "os", f"numpy{AND_LATER}", "torch"),
        ("os numpy", True, 0, "", f"os{AND_LATER}", "torch"),
        ("numpy torch.nn pandas", False, 1, "numpy", f"torch.nn{AND_LATER}", "torch"),
        ("torch pandas numpy", False, 1, "torch", f"pandas{AND_LATER}", "pandas"),
        # The second import of a module is removed alone.
        ("torch torch", False, 1, "torch", f"torch{AND_LATER}", None),
        # The cache has a new entry since the first count.
        ("os numpy", True, 4, "os numpy torch torch._dynamo", None, None),
    ],
)
def test_keep_first_removes_later_imports(
    leading: str,
    count: int,
    kept: str,
    removed: str | None,
    not_preloaded: str | None,
    *,
    hides_torch: bool,
) -> None:
    why = "importing it raised ImportError: x"
    names = leading.split()
    plan = planned(with_torch_later(*names) if hides_torch else walked(*names))
    plan.imports_dynamo = hides_torch

    plan.keep_first(count, why)

    assert plan.names == kept.split()
    assert plan.left_to_workers == ([(removed, why)] if removed else [])
    assert (plan.not_preloaded, plan.why_not_preloaded) == (
        not_preloaded,
        why if not_preloaded else None,
    )
    assert plan.preload_option_helps == (not_preloaded is None)


def test_each_package_is_in_one_table() -> None:
    tables = [
        packages.FORK_SAFE,
        packages.LEFT_TO_WORKERS,
        packages.ENDS_PRELOADING,
    ]

    assert sum(map(len, tables)) == len({name for table in tables for name in table})
