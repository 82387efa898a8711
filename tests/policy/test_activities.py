"""The activities of main threads, by their stacks."""

import pytest
from clusterrun.policy.activities import MAX_PLACES, activity_of, places_of, with_stacks
from clusterrun.policy.samples import Activity, SampledPlace, WindowSample
from msgspec.structs import replace

SITE = "/opt/venv/lib/python3.11/site-packages"
LIB = "/usr/lib/python3.11"
MAIN_FRAME = "<module> (/home/me/train.py:9)"
LAUNCHER = "<module> (/src/launcher/clusterrun/workers/fork_server/__main__.py:48)"
STEP = "Trainer.step (/home/me/train.py:88)"
HERE = "train.py:88 Trainer.step"

TORCH = f"{SITE}/torch"
READ_ITEM = "Samples.__getitem__ (/home/me/data.py:7)"

CLOSURE = (f"AdamW.step ({TORCH}/optim/adamw.py:9)", f"closure ({SITE}/lightning/automatic.py:9)")
"""Lightning's forward and backward pass run in a closure that the optimizer calls."""

KINDS = [
    # Data: in any frame.
    ("data", f"get ({TORCH}/utils/data/dataloader.py:1)", f"wait ({LIB}/selectors.py:4)"),
    ("data", READ_ITEM, f"open ({SITE}/PIL/Image.py:3)"),
    ("data", READ_ITEM),
    ("compute", f"ModuleList.__getitem__ ({TORCH}/nn/modules/container.py:7)"),
    # Checkpoints.
    ("save", f"_save ({TORCH}/serialization.py:900)"),
    ("save", f"save ({TORCH}/distributed/checkpoint/state_dict_saver.py:3)"),
    # Other ranks.
    ("wait", f"all_reduce ({TORCH}/distributed/distributed_c10d.py:9)"),
    ("wait", f"FSDPParam.wait_for_unshard ({TORCH}/distributed/fsdp/_fully_shard/x.py:9)"),
    ("compute", f"FSDPParam.to_sharded ({TORCH}/distributed/fsdp/_fully_shard/x.py:9)"),
    ("wait", "Allreduce (mpi4py/MPI.pyx:1)"),
    # GPUs.
    ("gpu", f"synchronize ({TORCH}/cuda/__init__.py:9)"),
    ("gpu", f"Event.synchronize ({TORCH}/cuda/streams.py:9)"),
    # Computing.
    ("backward", f"_engine_run_backward ({TORCH}/autograd/graph.py:9)"),
    ("other", f"_engine_run_backward ({TORCH}/autograd/graph.py:9)", STEP),
    ("optimizer", f"AdamW.step ({TORCH}/optim/adamw.py:9)", f"x ({TORCH}/_tensor.py:1)"),
    ("compute", *CLOSURE, f"Linear.forward ({TORCH}/nn/modules/linear.py:9)"),
    ("backward", *CLOSURE, f"_engine_run_backward ({TORCH}/autograd/graph.py:9)"),
    ("other", *CLOSURE, STEP),
    ("compute", f"Linear.forward ({TORCH}/nn/modules/linear.py:9)"),
    # A user's file is none of torch's.
    ("other", "forward (/home/me/torch/nn/modules/linear.py:9)"),
    ("other", f"Thread.run ({LIB}/threading.py:9)"),
]


@pytest.mark.parametrize("row", KINDS)
def test_activity_of_stack(row: tuple[str, ...]) -> None:
    kind, *frames = row

    assert activity_of([LAUNCHER, MAIN_FRAME, *frames])[0] is Activity(kind)


PLACES = [
    (HERE, MAIN_FRAME, STEP, f"Linear.forward ({TORCH}/nn/modules/linear.py:9)"),
    ("train.py:9 <module>", LAUNCHER, MAIN_FRAME),
    ("train.py:9 <module>", "<module> (train.py:9)"),
    ("__main__.py:3 main", f"run ({LIB}/runpy.py:7)", f"main ({SITE}/tool/__main__.py:3)"),
    ("train.py:9 <module>", MAIN_FRAME, "_find (<frozen importlib._bootstrap>:7)"),
    ("<frozen importlib._bootstrap>:7 _find", "_find (<frozen importlib._bootstrap>:7)"),
    ("?",),
]


@pytest.mark.parametrize("row", PLACES)
def test_place_of_stack(row: tuple[str, ...]) -> None:
    """The place is the innermost frame of user code, or else the innermost frame."""
    place, *frames = row

    assert activity_of(frames)[1] == place


BACKWARD = (STEP, f"_engine_run_backward ({SITE}/torch/autograd/graph.py:9)")
FORWARD = (STEP, f"Linear.forward ({SITE}/torch/nn/modules/linear.py:9)")
READ = (READ_ITEM,)
PROC = WindowSample(cpu=0.3, queue=0.1, states={"R": 1.0})


def test_backward_is_divided_by_time_asleep() -> None:
    """The thread slept for 60 %, but read data for 20 %, so it waited in backward for 40 %."""
    seen = with_stacks(PROC, {BACKWARD: 70, FORWARD: 10, READ: 20})

    assert seen.activities == {
        Activity.COMPUTE: 0.4,
        Activity.DATA: 0.2,
        Activity.WAIT: 0.4,
    }
    assert seen.samples == 100
    assert seen.places == (
        SampledPlace(Activity.BACKWARD, HERE, 0.7),
        SampledPlace(Activity.DATA, "data.py:7 Samples.__getitem__", 0.2),
        SampledPlace(Activity.COMPUTE, HERE, 0.1),
    )


@pytest.mark.parametrize(
    ("cpu", "waits"), [(1.0, 0.0), (0.9, 0.1), (0.0, 0.5)], ids=["busy", "some", "asleep"]
)
def test_backward_waits_at_most_as_long_as_seen(cpu: float, waits: float) -> None:
    seen = with_stacks(replace(PROC, cpu=cpu, queue=0.0), {BACKWARD: 50, FORWARD: 50})

    assert seen.activities == {Activity.COMPUTE: 1 - waits, Activity.WAIT: waits}


def test_sleep_outside_backward_is_not_waiting() -> None:
    assert with_stacks(PROC, {FORWARD: 10}).activities == {Activity.COMPUTE: 1.0}


def test_window_without_stacks_is_unchanged() -> None:
    assert with_stacks(PROC, {}) == PROC


def test_rare_places_are_dropped() -> None:
    stacks: dict[tuple[str, ...], int] = {
        (f"f (/home/me/train.py:{line})",): line for line in range(1, 2 * MAX_PLACES)
    }

    places = places_of(stacks)

    assert len(places) == MAX_PLACES
    assert places[0].place == f"train.py:{2 * MAX_PLACES - 1} f"
