"""``clusterrun bench`` on scripts that print their throughput."""

import json
import signal
from pathlib import Path

import pytest

from tests.contract.launched import Launcher, await_text

SCALES = """
    import os, sys

    factor = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    for step in range(5):
        # The first step must not be used.
        speed = 1 if step == 0 else 100 * factor * int(os.environ["WORLD_SIZE"])
        print("step", step, speed, "images/s", flush=True)
"""


def test_two_variants_at_two_sizes(clusterrun: Launcher) -> None:
    """The output of each run is in its own folder."""
    variants = ("--variant=plain:", "--variant=fast: --start-method spawn -- 3")
    options = ("--nproc=1,2", *variants, "--json", "--log-dir=results")
    done = clusterrun.script(SCALES, "bench", *options).ended()

    assert done.code == 0, done
    rows = json.loads(done.out)["rows"]
    assert [(row["variant"], row["ranks"], row["throughput"]) for row in rows] == [
        ("plain", 1, 100.0),
        ("fast", 1, 300.0),
        ("plain", 2, 200.0),
        ("fast", 2, 600.0),
    ]
    assert [(row["speed_up"], row["efficiency"]) for row in rows] == [
        (1.0, 1.0),
        (3.0, 1.0),
        (2.0, 1.0),
        (6.0, 1.0),
    ]
    assert "clusterrun: run 4 of 4: fast, 2 ranks\n" in done.err
    folder = clusterrun.folder / "results"
    assert len(list(folder.rglob("rank-*.out"))) == 6
    assert json.loads((folder / "results.json").read_text())["unit"] == "images/s"


@pytest.mark.long
def test_failed_run(clusterrun: Launcher) -> None:
    """Other runs are measured. The exit code is that of the failed run."""
    script = "import sys\nprint('5 it/s')\nsys.exit(int(sys.argv[1]))"
    variants = ("--variant=bad: -- 7", "--variant=good: -- 0")
    done = clusterrun.script(script, "bench", "--nproc=1", *variants).ended()

    assert done.code == 7, done
    folder = Path("clusterrun-bench/bad/1-nodes-1-workers/round-1")
    assert done.out.splitlines()[1].endswith(f"exit code 7; see {folder}")
    assert "exit code 7" in (clusterrun.folder / folder / "output.txt").read_text()
    assert done.out.splitlines()[2].split()[:4] == ["good", "1", "1", "5"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_signal_ends_the_current_run(clusterrun: Launcher, number: int) -> None:
    """Previous runs are in the table."""
    script = """
        import os, time
        print("5 it/s", flush=True)
        while os.environ["WORLD_SIZE"] == "2":
            time.sleep(0.1)
        """
    job = clusterrun.script(script, "bench", "--nproc=1,2,4", "--json")
    job.wait_for("run 2 of 3")
    output = clusterrun.folder / "clusterrun-bench/script/1-nodes-2-workers/round-1/output.txt"
    await_text(output, "5 it/s", 2)

    job.signal(number)

    done = job.ended()
    assert done.code == 128 + number, done
    assert [row["throughput"] for row in json.loads(done.out)["rows"]] == [5.0]
    assert "clusterrun: interrupted: 1 of 3 runs are measured\n" in done.err
    assert "stopping 2 workers" in output.read_text()
    assert job.left() == []


def test_closed_standard_output(clusterrun: Launcher) -> None:
    """The results are in their folder."""
    words = ("bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash")
    done = clusterrun.script("print('5 it/s')", "bench", "--nproc=1", around=words).ended()

    assert done.code == 128 + signal.SIGPIPE
    assert "error" not in done.err
    assert (clusterrun.folder / "clusterrun-bench/results.json").exists()


@pytest.mark.long
def test_folder_whose_name_is_not_utf_8(clusterrun: Launcher) -> None:
    options = ("--nproc=1", "--log-dir=r\udc80", "--json")
    done = clusterrun.script("print('5 it/s')", "bench", *options).ended()

    assert done.code == 0, done
    assert json.loads(done.out) == json.loads(
        (clusterrun.folder / "r\udc80/results.json").read_text()
    )


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("print('hello')", "no throughput found: give --metric REGEX"),
        ("print('0 images/s')\nprint('0.0 images/s')", "the throughput is 0"),
    ],
)
def test_run_without_throughput_is_a_failure(script: str, fault: str, clusterrun: Launcher) -> None:
    done = clusterrun.script(script, "bench", "--nproc=1", "--json").ended()

    why = f"{fault}; see clusterrun-bench/script/1-nodes-1-workers/round-1"
    (row,) = json.loads(done.out)["rows"]
    assert (done.code, row["throughput"], row["fault"]) == (1, None, why)
    assert done.err.endswith("clusterrun: exit code 1: runs without a throughput: script, 1 rank\n")


@pytest.mark.long
def test_metric_option_and_drawing(clusterrun: Launcher) -> None:
    script = "print('speed=12')"
    given = clusterrun.script(script, "bench", "--nproc=1", "--metric", r"speed=(\d+)").ended()

    assert given.code == 0
    folder = clusterrun.folder / "clusterrun-bench"
    assert sorted(path.suffix for path in folder.glob("throughput.*")) == [".png", ".svg"]
    assert given.out.splitlines()[1].split()[3] == "12"
