"""torchrun's options for output: the same command line writes and prints the same lines."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.launched import COMMAND, Launcher, node_options, plain_environment

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))

PROGRAM = """\
echo "out of $LOCAL_RANK, loss 1"
echo "out of $LOCAL_RANK, step 2"
echo "err of $LOCAL_RANK, loss 1" >&2
"""

LINE = re.compile(r"(?:.*[\]:] ?)?((?:out|err) of .*)")


class Printed(NamedTuple):
    """The lines of two workers, without prefix."""

    out: list[str]
    err: list[str]
    files: dict[str, str]
    """By local rank and stream: "0.out"."""
    filtered: dict[str, list[str]]


def workers_lines(text: str) -> list[str]:
    """Return the workers' lines in rank order, without the launchers' own lines."""
    found = (LINE.fullmatch(line) for line in text.splitlines())
    return sorted(match[1] for match in found if match)


def by_torchrun(folder: Path, script: Path, options: Sequence[str]) -> Printed:
    done = run([TORCHRUN, "--nproc-per-node=2", "--master-port=0", *options, "--no-python", script])
    files = {
        f"{path.parent.name}.{path.stem[3:]}": path.read_text() for path in folder.rglob("std*.log")
    }
    return printed(folder, done, files)


def by_clusterrun(folder: Path, script: Path, options: Sequence[str]) -> Printed:
    done = run([COMMAND, "--nproc-per-node=2", *options, "--no-python", script])
    files = {f"{path.stem[5:]}{path.suffix}": path.read_text() for path in folder.rglob("rank-*")}
    return printed(folder, done, files)


def run(command: Sequence[object]) -> "subprocess.CompletedProcess[str]":
    """Run a command; assert that it succeeds."""
    done = subprocess.run(
        list(map(str, command)),
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def printed(
    folder: Path, done: "subprocess.CompletedProcess[str]", files: dict[str, str]
) -> Printed:
    """Return what a launcher printed, and wrote to ``folder``."""
    filtered = {
        path.name: workers_lines(path.read_text()) for path in folder.rglob("filtered_*.log")
    }
    # torchrun creates some empty files, clusterrun does not.
    filtered = {name: lines for name, lines in filtered.items() if lines}
    return Printed(workers_lines(done.stdout), workers_lines(done.stderr), files, filtered)


def log_files(folder: Path) -> dict[str, str]:
    """Return the texts of log files by the paths that programs look for, in the run's folder."""
    return {
        str(path.relative_to(path.parents[2])): path.read_text()
        for path in folder.glob("*/attempt_0/*/std*.log")
    }


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--redirects", "1"], marks=pytest.mark.long),
        pytest.param(["-r", "0:3,1:2"], marks=pytest.mark.long),
        ["-t", "3", "--local-ranks-filter", "1"],
        pytest.param(
            ["-r", "3", "--tee", "0:2", "--duplicate_stderr_filters", "loss"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["--tee=3", "--local_ranks_filter=0", "--duplicate-stdout-filters=step,nothing"],
            marks=pytest.mark.long,
        ),
    ],
    ids=" ".join,
)
def test_lines_and_files_are_those_of_torchrun(
    tmp_path: Path, torchrun: Launcher, options: list[str]
) -> None:
    """If the command is called torchrun, its files also have the same names."""
    script, theirs, ours = tmp_path / "program.sh", tmp_path / "theirs", tmp_path / "ours"
    script.write_text(f"#!/bin/sh\n{PROGRAM}")
    script.chmod(0o755)

    expected = by_torchrun(theirs, script, [f"--log-dir={theirs}", *options])
    found = by_clusterrun(ours, script, [f"--log-dir={ours}", *options])

    assert expected.files, "torchrun wrote nothing"
    assert found == expected

    linked = tmp_path / "linked"
    run([torchrun.program, "--nproc=2", f"--log-dir={linked}", *options, "--no-python", script])

    assert log_files(linked) == log_files(theirs)
    (of_run,) = linked.iterdir()
    filtered = {path.name for path in of_run.glob("attempt_0/filtered_*.log")}
    assert filtered == expected.filtered.keys()


def test_line_prefix_is_configurable(clusterrun: Launcher) -> None:
    """Torchrun's variable and flag also apply to a single worker."""
    text = "print('hello')"
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}> "}

    one = clusterrun.script(text, workers=1, environ=template)
    two = clusterrun.script(
        text, "--log-line-prefix-template=${local_rank}|${rnak}|", workers=2, environ=template
    )

    assert one.ended() == (0, "<default 0> hello\n", "")
    assert sorted(two.ended().out.splitlines()) == ["0|${rnak}|hello", "1|${rnak}|hello"]


def test_redirects_of_local_rank_10(clusterrun: Launcher) -> None:
    """Torchrun's own pattern accepts only one digit."""
    ended = clusterrun.script(
        "import os; print('rank', os.environ['RANK'])",
        "--redirects=0:1,10:1",
        "--local-ranks-filter=0,9-10",
        "--log-dir=logs",
        workers=11,
    ).ended()

    assert (ended.code, ended.out) == (0, "[rank 9] rank 9\n")
    files = (clusterrun.folder / "logs/latest").rglob("rank-*")
    assert {path.name: path.read_text() for path in files} == {
        "rank-0.out": "rank 0\n",
        "rank-10.out": "rank 10\n",
    }


def test_redirects_without_log_dir(clusterrun: Launcher) -> None:
    """The files are in the current folder, and a notice says so."""
    scratch = clusterrun.folder / "tmp"
    scratch.mkdir()
    ended = clusterrun.script(
        "print('hello')", "-r1", workers=1, environ={"TMPDIR": str(scratch)}
    ).ended()

    written = "log files go to clusterrun-logs; clusterrun-logs/latest is the last run"
    assert ended == (0, "", f"clusterrun: --redirects is set, but not --log-dir: {written}\n")
    host = os.uname().nodename
    log = clusterrun.folder / f"clusterrun-logs/latest/attempt-0/{host}-0/rank-0.out"
    assert log.read_text() == "hello\n"
    assert list(scratch.iterdir()) == []


def test_tee_without_log_dir_leaves_no_files(torchrun: Launcher) -> None:
    """Torchrun leaves them in a folder in /tmp."""
    scratch = torchrun.folder / "tmp"
    scratch.mkdir()
    before = sorted(torchrun.folder.iterdir())
    environ = {"TMPDIR": str(scratch)}

    ended = torchrun.script("print('hello')", "--nproc=2", "--tee=3", environ=environ).ended()

    assert (ended.code, sorted(ended.out.splitlines()), ended.err) == (
        0,
        ["[default0]:hello", "[default1]:hello"],
        "",
    )
    made = set(torchrun.folder.iterdir()) - set(before)
    assert {path.suffix for path in made} == {".py"}
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--ranks=0", "  its output was hidden by --ranks 0\n"),
        ("--local-ranks-filter=0", "  its output was hidden by --local-ranks-filter 0\n"),
        ("--redirects=3", ""),
    ],
)
def test_failure_of_a_hidden_rank(clusterrun: Launcher, option: str, why: str) -> None:
    """The report has its last lines, and says why they were not printed."""
    ended = clusterrun.script(
        """
        import os
        if os.environ["RANK"] == "1":
            raise ValueError("boom")
        """,
        option,
        "--log-dir=logs",
        workers=2,
    ).ended()

    assert ended.code == 1
    assert "[rank" not in ended.err
    assert "failed: ValueError: boom\n" in ended.err
    assert '    raise ValueError("boom")\n' in ended.err
    assert "\n  its log: " in ended.err
    assert why in ended.err


def test_report_has_last_lines_of_redirected_worker(clusterrun: Launcher) -> None:
    ended = clusterrun.script(
        "raise ValueError('boom')", "-r3", "--log-dir=logs", workers=1
    ).ended()

    assert ended.code == 1
    assert ended.err.count("raise ValueError('boom')") == 1


def test_output_is_printed_if_log_folder_is_not_writable(clusterrun: Launcher) -> None:
    (clusterrun.folder / "logs").mkdir()
    (clusterrun.folder / "logs/run").write_text("no folder")
    ended = clusterrun.script(
        "print('hello')", "-r1", "--log-dir=logs", "--run-id=run", workers=2
    ).ended()

    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == ["[rank 0] hello", "[rank 1] hello"]
    folder = clusterrun.folder / "logs/run"
    assert ended.err == (
        f"clusterrun: log folder {folder}: Not a directory; no log file is written there\n"
    )


def test_warning_for_ranks_that_do_not_exist(clusterrun: Launcher) -> None:
    ended = clusterrun.script("print('hello')", "--ranks=4-5", workers=2).ended()

    warning = "clusterrun: --ranks: there is no rank 4-5, so no rank's output is printed\n"
    assert ended == (0, "", warning)


def test_ranks_option_counts_the_whole_job(clusterrun: Launcher) -> None:
    """--local-ranks-filter counts the ranks of each node."""
    text = "import os; print(os.environ['LOCAL_RANK'])"
    nodes = [
        clusterrun.script(text, *options, "--ranks=2-3", "--local-ranks-filter=1", workers=2)
        for options in node_options()
    ]

    first, second = (node.ended() for node in nodes)

    assert (first.code, first.out) == (0, "")
    assert (second.code, second.out) == (0, f"[rank 3 {os.uname().nodename}] 1\n")


def test_workerlog_links(clusterrun: Launcher) -> None:
    """``workerlog.N`` has both streams of local rank N in the last attempt."""
    ended = clusterrun.script(
        """
        import os, sys
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit("no")
        """,
        "--cluster=paddle",
        "--log-dir=logs",
        "--max-restarts=1",
        workers=1,
    ).ended()

    logs = clusterrun.folder / "logs"
    assert ended.code == 0
    assert (logs / "workerlog.0").is_symlink()
    assert (logs / "workerlog.0").read_text() == "attempt 1\n"
    [first] = logs.rglob("attempt-0/*/rank-0.log")
    assert first.read_text() == "attempt 0\nno\n"
