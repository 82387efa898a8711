"""Only what is known to allow a fork is imported before it, in the script's order, and torch."""

import pytest
from clusterrun.workers.fork_server.preloading import packages, script_walk
from clusterrun.workers.fork_server.preloading.plan import PreloadPlan, choose

from tests.workers.fork_server_bench import request_to_prepare

NOTHING_SLOW = "nothing that takes time is among what the script imports"
BY_ITSELF = "train.py:3 sets OMP_NUM_THREADS before torch is imported"


def walked(*names: str) -> script_walk.ScriptWalk:
    """Return the walk through a script with these imports before its first act."""
    walk = script_walk.ScriptWalk()
    walk.found = [packages.Import(name, ()) for name in names]
    return walk


def with_torch_later(*names: str) -> script_walk.ScriptWalk:
    """Return the walk through a script that imports torch after its first act."""
    walk = walked(*names)
    walk.first_side_effect = "train.py:2"
    walk.imports_torch = True
    return walk


def chosen(
    walk: script_walk.ScriptWalk,
    *,
    preload: str | tuple[str, ...] = "auto",
    workers: int = 8,
    remembered: str = "",
) -> PreloadPlan:
    return choose(request_to_prepare(preload=preload, workers=workers), walk, remembered)


@pytest.mark.parametrize(
    ("names", "imported", "why"),
    [
        # Modules that come with Python and parts of packages are among them, in their order.
        (["os", "numpy", "json", "torch.nn"], ["os", "numpy", "json", "torch.nn"], ""),
        (["yaml", "torch"], ["yaml", "torch"], ""),
        # Each worker imports in no time what is quick.
        (["yaml", "tqdm"], ["yaml", "tqdm"], NOTHING_SLOW),
        (["os"], ["os"], NOTHING_SLOW),
        ([], [], NOTHING_SLOW),
    ],
)
def test_what_is_found_before_the_first_act(
    names: list[str], imported: list[str], why: str
) -> None:
    """It is imported before the fork if that saves time."""
    choice = chosen(walked(*names))

    assert (choice.names, choice.why_spawn) == (imported, why)
    assert (choice.torch, choice.not_preloaded, choice.is_known) == ([], "", True)


def test_what_is_left_out_is_named() -> None:
    walk = walked("torch", "numpy")
    walk.left_out = [("torch_geometric", "it uses a GPU when it is imported")]

    choice = chosen(walk)

    assert choice.names == ["torch", "numpy"]
    assert choice.left_out == [("torch_geometric", "it uses a GPU when it is imported")]


def test_torch_that_is_imported_later() -> None:
    """It comes after the others; the variables that the script sets before go with it."""
    walk = with_torch_later("os", "yaml")
    walk.sets = [("OMP_NUM_THREADS", "1", False)]

    choice = chosen(walk)

    assert (choice.names, [each.name for each in choice.torch]) == (
        ["os", "yaml", "torch"],
        ["torch"],
    )
    assert choice.sets == [("OMP_NUM_THREADS", "1", False)]
    assert (choice.why_spawn, choice.not_preloaded) == ("", "")


@pytest.mark.parametrize("is_remembered", [False, True])
def test_an_obstacle(*, is_remembered: bool) -> None:
    """Each worker imports torch itself; what else takes time is imported before the fork."""
    walk, other = with_torch_later("os"), with_torch_later("pandas")
    if not is_remembered:
        walk.obstacle = other.obstacle = BY_ITSELF
    remembered = BY_ITSELF if is_remembered else ""

    alone = chosen(walk, remembered=remembered)
    beside = chosen(other, remembered=remembered)

    assert (alone.torch, alone.why_spawn) == ([], BY_ITSELF)
    assert (beside.names, beside.why_spawn) == (["pandas"], "")
    assert {(c.not_preloaded, c.why_not_preloaded) for c in (alone, beside)} == {
        ("torch", BY_ITSELF)
    }


def test_an_obstacle_in_the_text_is_named_rather_than_what_is_remembered() -> None:
    walk = with_torch_later()
    walk.obstacle = BY_ITSELF

    assert chosen(walk, remembered="train.py: a logger had changed").why_not_preloaded == BY_ITSELF


def test_what_is_remembered_does_not_matter_to_a_leading_import() -> None:
    """No line of the script comes before it."""
    choice = chosen(walked("torch"), remembered=BY_ITSELF)

    assert (choice.names, choice.not_preloaded) == (["torch"], "")


def test_a_slow_package_after_the_first_act() -> None:
    """Each worker imports it itself, and the user learns that."""
    walk = walked("os")
    walk.first_side_effect, walk.slow_after_side_effect = "train.py:2", ["numpy", "pandas"]

    choice = chosen(walk)

    why = "train.py:2 may do anything before numpy is imported"
    assert (choice.not_preloaded, choice.why_not_preloaded, choice.why_spawn) == ("numpy", why, why)


@pytest.mark.parametrize("walk", [with_torch_later(), walked("torch")])
def test_a_slow_package_after_torch(walk: script_walk.ScriptWalk) -> None:
    """Torch takes most of the time: nothing is said of others, which may stand where nothing runs."""
    walk.first_side_effect, walk.slow_after_side_effect = "train.py:2", ["pandas"]

    choice = chosen(walk)

    assert (choice.not_preloaded, choice.why_spawn, choice.names) == ("", "", ["torch"])


def test_a_script_that_could_not_be_read() -> None:
    walk = walked("os")
    walk.unread = "own.py can't be read"

    assert chosen(walk).why_spawn == "own.py can't be read"


def test_one_worker_has_an_interpreter_of_its_own() -> None:
    """A fork would make it wait for a process of no other use."""
    for walk in (walked("torch"), with_torch_later()):
        choice = chosen(walk, workers=1)

        assert choice.why_spawn == "a single worker shares its imports with no other"


def test_a_script_that_needs_only_python() -> None:
    """It is forked, with nothing imported before: that is faster than an interpreter for each."""
    walk = script_walk.ScriptWalk()
    walk.read_script(b"import os, json", "script.py")

    choice = chosen(walk)

    assert ([each.name for each in walk.found], choice.imports) == (["os", "json"], [])
    assert choice.why_spawn == ""


@pytest.mark.parametrize("workers", [1, 8])
def test_modules_that_the_user_names(workers: int) -> None:
    """They are imported whatever the script does, by one worker, too."""
    walk = with_torch_later("numpy")
    walk.obstacle = BY_ITSELF

    choice = chosen(walk, preload=("mine", "torch"), workers=workers)

    assert (choice.names, choice.torch, choice.is_known) == (["mine", "torch"], [], False)
    assert (choice.why_spawn, choice.not_preloaded, choice.left_out) == ("", "", [])


def test_nothing() -> None:
    choice = chosen(script_walk.ScriptWalk(), preload="none")

    assert (choice.names, choice.why_spawn, choice.is_known) == ([], "", True)


class TestKeepFirst:
    """The next one of the list can't be imported before the fork."""

    WHY = "importing it raised ImportError: x"

    def choice(self) -> PreloadPlan:
        choice = chosen(with_torch_later("os", "numpy"))
        choice.followers = [packages.Import("torch._dynamo", ())]
        assert choice.names == ["os", "numpy", "torch", "torch._dynamo"]
        return choice

    def test_follower(self) -> None:
        choice = self.choice()

        choice.keep_first(3, self.WHY)

        assert (choice.names, len(choice.torch)) == (["os", "numpy", "torch"], 1)
        assert (choice.left_out, choice.not_preloaded) == ([("torch._dynamo", self.WHY)], "")

    def test_torch(self) -> None:
        choice = self.choice()

        choice.keep_first(2, self.WHY)

        assert (choice.names, choice.torch) == (["os", "numpy"], [])
        assert choice.left_out == [("torch", self.WHY)]
        assert (choice.not_preloaded, choice.why_not_preloaded) == ("torch", self.WHY)

    def test_one_before_torch(self) -> None:
        choice = self.choice()

        choice.keep_first(1, self.WHY)

        assert choice.names == ["os"]
        assert choice.left_out == [("numpy and what is imported after it", self.WHY)]
        assert (choice.not_preloaded, choice.why_not_preloaded) == ("torch", self.WHY)

    def test_a_leading_torch(self) -> None:
        choice = chosen(walked("numpy", "torch.nn", "pandas"))

        choice.keep_first(1, self.WHY)

        assert choice.names == ["numpy"]
        assert choice.left_out == [("torch.nn and what is imported after it", self.WHY)]
        assert choice.not_preloaded == "torch"

    def test_one_after_torch(self) -> None:
        choice = chosen(walked("torch", "pandas", "numpy"))

        choice.keep_first(1, self.WHY)

        assert (choice.names, choice.not_preloaded) == (["torch"], "pandas")

    def test_the_same_import_twice(self) -> None:
        """The second one is dropped alone."""
        choice = chosen(walked("torch", "torch"))

        choice.keep_first(1, self.WHY)

        assert (choice.names, choice.not_preloaded) == (["torch"], "")

    def test_none(self) -> None:
        choice = self.choice()

        choice.keep_first(0, self.WHY)

        assert choice.names == []


def test_the_tables_do_not_contradict_each_other() -> None:
    """A package is in one of them only."""
    tables = [
        packages.FORK_SAFE,
        packages.LEFT_TO_WORKERS,
        packages.ENDS_PRELOADING,
    ]

    assert sum(map(len, tables)) == len({name for table in tables for name in table})
