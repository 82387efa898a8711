"""From the output of scripts to the table and the plot."""

import re
import shlex
from pathlib import Path

import pytest
from clusterrun.cli.commands import find_command
from clusterrun.clients.bench import (
    Benchmark,
    BenchOptions,
    Case,
    compare,
    draw,
    find_pattern,
    planned_runs,
    table,
    unit_in,
    values_in,
    without_warm_up,
)
from clusterrun.errors import UsageError

from tests.captured import captured


@pytest.mark.parametrize(
    ("line", "values", "unit"),
    [
        ("epoch 1/8 loss 0.5, 5123 images/s", [5123.0], "images/s"),
        ("step 10 | 1,234.5 tokens/sec", [1234.5], "tokens/s"),
        ("12.5k tok/s", [12500.0], "tok/s"),
        ("2.5M samples per second", [2.5e6], "samples/s"),
        ("{'train_samples_per_second': 81.25}", [81.25], "samples/s"),
        ("samples/sec: 99", [99.0], "samples/s"),
        ("step 10 tokens/s: 12345", [12345.0], "tokens/s"),
        ("epoch 13 images/s 512.5", [512.5], "images/s"),
        ("512 images/s 0.25 loss", [512.0], "images/s"),
        ("Throughput (per GPU): 17.5", [17.5], "per second"),
        ("iter 20 it/s: 4.5", [4.5], "it/s"),
        ("Throughput: 17.5", [17.5], "per second"),
        (" 50%|##   | 5/10 [00:01<00:01,  4.00it/s]", [4.0], "it/s"),
        (" 50%|##   | 5/10 [00:10<00:10,  2.00s/it]", [0.5], "it/s"),
        ("{'train_steps_per_second': 3}", [3.0], "steps/s"),
        ("3.0it/s, 96 samples/s", [96.0], "samples/s"),
        ("[rank 3 n1] 7 images/s\n[rank 2 n1] 5 images/s\n[rank 2] 6 images/s", [5, 6], "images/s"),
    ],
)
def test_common_pattern_gives_values_and_unit(line: str, values: list[float], unit: str) -> None:
    """Samples are preferred to steps, and the lowest rank to others."""
    pattern = find_pattern([f"begin\n{line}\nend\n"])

    assert pattern is not None
    assert values_in(f"begin\n{line}\nend\n", pattern) == values
    assert unit_in([line], pattern) == unit


@pytest.mark.parametrize(
    "text", ["", "loss 0.5", "took 2 s", "10 MB/s", "lr 1e-3 it 5", "Throughput at step 100: 5000"]
)
def test_no_common_pattern_matches(text: str) -> None:
    assert find_pattern([text]) is None


@pytest.mark.parametrize(
    ("pattern", "text", "values"),
    [
        (r"speed=(\S+)", "speed=4\nspeed=fast\nspeed=nan\nspeed=inf\nspeed=1e3\n", [4.0, 1000.0]),
        (r"(\d+) img/s|throughput: (\d+)", "throughput: 3\n7 img/s\n", [7.0]),
        (r"(?P<seconds>a|b) (?P<unit>\d+)", "a 3\n", []),
    ],
)
def test_values_of_users_pattern(pattern: str, text: str, values: list[float]) -> None:
    """The first group is the value; a match without a finite number is ignored."""
    assert values_in(text, re.compile(pattern)) == values


@pytest.mark.parametrize(
    ("count", "warm_up", "left"),
    [(0, None, 0), (1, None, 1), (2, None, 1), (10, None, 8), (10, 0, 10), (3, 5, 1)],
)
def test_warm_up_values_are_skipped(count: int, warm_up: int | None, left: int) -> None:
    """At least one value is kept."""
    values = [float(number) for number in range(count)]

    assert without_warm_up(values, warm_up) == tuple(values[count - left :])


MEASURED = {
    Case("plain", 1, 1): (100.0, 100.0, 110.0),
    Case("fast", 1, 1): (200.0,),
    Case("plain", 1, 2): (180.0, 170.0, 190.0, 180.0),
    Case("fast", 1, 2): (),
    Case("fast", 2, 2): (400.0,),
}

BENCHMARK = Benchmark("images/s", compare(MEASURED, {Case("fast", 1, 2): "exit code 1"}), "folder")


def test_table_compares_variants_and_sizes() -> None:
    """Speed-up is relative to the first row, efficiency to the variant's smallest size."""
    assert table(BENCHMARK).splitlines() == [
        "variant  nodes  ranks  images/s  spread  speed-up  efficiency",
        "plain    1      1      100       ±5 %    1.00      100 %",
        "fast     1      1      200       ±0 %    2.00      100 %",
        "plain    1      2      180       ±4 %    1.80      90 %",
        "fast     1      2      -         -       -         -           exit code 1",
        "fast     2      4      400       ±0 %    4.00      50 %",
    ]


def test_case_without_values_has_no_speed_up() -> None:
    [row] = compare({Case("plain", 1, 1): ()}, {Case("plain", 1, 1): "exit code 1"})

    assert (row.speed_up, row.fault) == (None, "exit code 1")


def test_plot_is_reproducible_and_svg_has_text() -> None:
    pytest.importorskip("matplotlib")
    svg = draw(BENCHMARK, "svg")

    assert svg == draw(BENCHMARK, "svg")
    assert draw(BENCHMARK, "png").startswith(b"\x89PNG")
    for text in ("ideal", "plain", "fast", "images/s", "ranks"):
        assert f">{text}</text>" in svg.decode()


ONE_OR_TWO = "--variant 'a: --devices 0,1' --variant 'b: --devices 0,1,2,3'"
SSH = "--launcher ssh --hosts a,b"


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ("", [1, 2, 4, 8]),
        ("--devices 0,1", [1, 2]),
        ("--gpus-per-worker 2", [1, 2, 4]),
        ("--env CUDA_VISIBLE_DEVICES=0,1,2", [1, 2, 3]),
        (ONE_OR_TWO, [1, 2]),
        (SSH, [1, 2, 4, 8]),
        # The hosts may have what this machine lacks.
        (f"{SSH} --devices 9", [1]),
        ("--devices 9", "--devices: GPU 9 is not visible"),
    ],
)
def test_usual_sizes_are_those_that_the_options_allow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eight_gpus: Path,
    options: str,
    sizes: list[int] | str,
) -> None:
    monkeypatch.setattr("clusterrun.run.node.ROOT", eight_gpus)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    _, line = find_command(["bench", *shlex.split(options), "train.py"], "clusterrun")

    try:
        runs = planned_runs(line, line.read(BenchOptions), Path("out"), {}, "clusterrun")
        found: object = sorted({run.case.nproc for run in runs})
    except UsageError as error:
        found = error.message

    assert found == sizes


@pytest.mark.parametrize("options", ["--gpus-per-worker 9", "--devices 9"])
def test_host_of_salloc_may_lack_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight_gpus: Path, options: str
) -> None:
    """The runs are on the nodes of the allocation; without one, on this host."""
    monkeypatch.setattr("clusterrun.run.node.ROOT", eight_gpus)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "srun").touch(0o755)
    path = {"PATH": str(tmp_path)}
    _, line = find_command(["bench", *options.split(), "train.py"], "clusterrun")
    read = line.read(BenchOptions)

    (run,) = planned_runs(line, read, Path("out"), captured("salloc") | path, "clusterrun")

    assert (run.case.nodes, run.case.nproc) == (2, 1)
    with pytest.raises(UsageError) as refused:
        planned_runs(line, read, Path("out"), path, "clusterrun")
    assert "--nproc-per-node" not in refused.value.hint
