"""The exact text of the report at the end of a job."""

import json
import re
import signal
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank
from clusterrun.descriptor_output import LostOutput
from clusterrun.policy.outcome import (
    EarlierExits,
    Exited,
    ExitStatus,
    HangSign,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    NotStarted,
    NotSuspended,
    Outcome,
    Reason,
    Replacement,
    Report,
    RestartProgress,
    Succeeded,
    Suspended,
    WorkerFailed,
    WorkerResult,
)
from clusterrun.report.outcome import lost_output_text, report_text, restart_text
from msgspec.structs import replace

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: boom
"""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print local times in UTC."""
    monkeypatch.setattr(time, "localtime", time.gmtime)


def result(rank: int, exit_status: ExitStatus, **fields: Any) -> WorkerResult:
    """Return the result of a worker on host gpu-07 that ended at 14:13:22 UTC."""
    usual = WorkerResult(
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank % 8),
        host="gpu-07",
        pid=4000 + rank,
        exit_status=exit_status,
        stopped_by_us=False,
        clock=1_790_000_002.0,
        ran_for=12.34,
        tail="",
        log="",
        error="",
        out_of_memory="",
    )
    return replace(usual, **fields)


def outcome(reason: Reason, *results: WorkerResult, survivors: tuple[str, ...] = ()) -> Outcome:
    return Outcome(reason, attempt=0, results=results, survivors=survivors)


def failed(cause: WorkerResult, *others: WorkerResult, survivors: tuple[str, ...] = ()) -> Outcome:
    return outcome(WorkerFailed(cause), cause, *others, survivors=survivors)


def report_of(
    ended: Outcome, *, already_shown: bool = False, hidden: str = "", had_input: bool = True
) -> str:
    facts = Report(ended, already_shown=already_shown, hidden=hidden, had_input=had_input)
    return report_text(facts)


def lines(text: str) -> str:
    """Return an expected report without its indentation."""
    return dedent(text).strip("\n")


def by_us(rank: int, exit_status: ExitStatus, **fields: Any) -> WorkerResult:
    return result(rank, exit_status, stopped_by_us=True, **fields)


def boom(words: str) -> str:
    return TRACEBACK.replace("boom", words)


KILLED, TERMINATED = Killed(signal.SIGKILL), Killed(signal.SIGTERM)
SURVIVORS = ("pid 12 (python, state D in nfs_wait)",)
POSITIONS = "62 ranks are in all_reduce at train.py:88; ranks 3, 17 are in f at d.py:4"
RECORDED = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": TRACEBACK}}}
ENDED = {
    "failed rank": failed(
        result(
            11,
            Exited(7),
            tail=f"loading\n{TRACEBACK}",
            log="/logs/r/attempt-0/gpu-07-1/rank-11.err",
        ),
        *(by_us(rank, TERMINATED) for rank in (8, 9, 10, 13, 14, 15)),
        result(12, Exited(0)),
    ),
    "output without a traceback": failed(result(0, Exited(1), tail="step 1\nno data in /data\n")),
    "killed for memory": failed(
        result(2, KILLED, out_of_memory="the cgroup /job (limit 64 MiB) counts 1 kill")
    ),
    "not started": failed(
        result(3, NotStarted("binding to CPUs 0-3", "Invalid argument"), pid=0, ran_for=0.0),
        by_us(4, NotStarted("", "")),
    ),
    "error file without standard error": failed(result(0, Exited(1), error=json.dumps(RECORDED))),
    "other ranks by exit status": failed(
        result(0, Exited(7)),
        result(1, Exited(1), tail=boom("1 is gone")),
        result(2, Exited(1), tail=boom("2 is gone")),
        result(3, Killed(signal.SIGABRT)),
        by_us(4, KILLED),
        by_us(5, Exited(0)),
        by_us(6, Exited(3), tail=TRACEBACK),
        result(7, NotStarted("exec", "Permission denied")),
        result(8, KILLED, out_of_memory="evidence"),
        result(9, Exited(1), tail=boom("connection reset by peer")),
        result(10, Killed(signal.SIGABRT), tail="terminate called: Connection closed by peer"),
        result(11, Exited(1), tail=boom("connection reset by peer"), out_of_memory="evidence"),
    ),
    "Ctrl-C, and a rank that needed SIGKILL": outcome(
        Interrupted(signal.SIGINT),
        *(by_us(0, KILLED), by_us(1, Exited(0)), by_us(2, KILLED, killed_by_others=True)),
    ),
    "SIGTERM": outcome(Interrupted(signal.SIGTERM), by_us(0, TERMINATED), by_us(1, Exited(0))),
    "SIGTERM, and a rank that failed while stopped": outcome(
        Interrupted(signal.SIGTERM), by_us(0, Exited(0)), by_us(1, Exited(1), tail=TRACEBACK)
    ),
    "killed helper": outcome(
        HelperFailed("fork server", "was killed by SIGKILL", signal.SIGKILL), by_us(0, KILLED)
    ),
    "failed helper": outcome(HelperFailed("relay", "exited with code 1", 0), by_us(0, KILLED)),
    "survivor of a failure": failed(result(0, Exited(7)), survivors=SURVIVORS),
    "survivor of a success": outcome(Succeeded(), survivors=SURVIVORS),
    "hang": outcome(Hung(600.0, (3, 17), POSITIONS), by_us(0, TERMINATED)),
    "hang without stacks": outcome(Hung(60.0, (), "")),
    "hang of ranks that print": outcome(Hung(60.0, (), "", HangSign.STILL)),
    "suspended": outcome(
        Suspended("SIGTERM", 12, 6.0, 99, silent=(2, 3)),
        *(by_us(0, Exited(9)), by_us(1, Exited(9)), by_us(2, TERMINATED), by_us(4, Exited(0))),
    ),
    **{
        f"{who} had not saved": outcome(
            NotSuspended("SIGTERM", 12, 30.0, ranks), by_us(0, Exited(0))
        )
        for who, ranks in {"one rank": (1,), "three ranks": (1, 2, 3), "unknown ranks": ()}.items()
    },
    "node that did not answer": outcome(
        NotSuspended("SIGTERM", None, 30.0, (2, 3)), by_us(0, Exited(0))
    ),
}
"""By the names in reports.txt."""

REPORTS = dict(
    re.findall(
        r"(?m)^([^>#\n].*)\n((?:>.*\n)+)", (Path(__file__).parent / "reports.txt").read_text()
    )
)


@pytest.mark.parametrize("name", ENDED)
def test_report(name: str) -> None:
    """The expected text is in reports.txt."""
    shown = [f"> {line}".rstrip() for line in report_of(ENDED[name]).splitlines()]

    assert shown == REPORTS[name].splitlines()


def test_report_does_not_repeat_shown_output() -> None:
    ended = failed(result(2, Exited(1), tail=TRACEBACK, out_of_memory="1 kill in the cgroup /job"))

    assert report_of(ended, already_shown=True) == lines("""
        clusterrun: rank 2 on gpu-07 failed: ValueError: boom
          exit code 1, local rank 2, pid 4002, at 2026-09-21 14:13:22, 12.3 s after its start
          out of memory: 1 kill in the cgroup /job
        clusterrun: exit code 1, from rank 2
    """)


def test_report_names_option_that_hid_output() -> None:
    """The report has its last output, and the option that hid it."""
    cause = result(3, Exited(1), tail=TRACEBACK, log="/logs/rank-3.err")

    text = report_of(failed(cause, result(0, Exited(0))), hidden="--ranks 0")

    assert text.endswith(
        "    ValueError: boom\n\n"
        "  its log: /logs/rank-3.err\n"
        "  its output was hidden by --ranks 0\n"
        "  rank 0: ended earlier, exit code 0\n"
        "clusterrun: exit code 1, from rank 3"
    )
    assert "hidden by" not in report_of(outcome(Interrupted(signal.SIGTERM)), hidden="--ranks 0")


@pytest.mark.parametrize("exception", ["EOFError: EOF when reading a line", "bdb.BdbQuit"])
def test_report_names_missing_standard_input(exception: str) -> None:
    """A question or a debugger has reached the end of its input."""
    ended = failed(result(1, Exited(1), tail=TRACEBACK.replace("ValueError: boom", exception)))
    hint = "  its standard input was /dev/null; only rank 0 reads clusterrun's standard input\n"

    assert hint in report_of(ended, had_input=False)
    assert hint not in report_of(ended)
    assert hint not in report_of(failed(result(1, Exited(1), tail=TRACEBACK)), had_input=False)


@pytest.mark.parametrize(
    ("exits", "words"),
    [
        (EarlierExits((1,), 0, 1.2), "rank 1 had exited with code 0 1.20 s before"),
        (
            EarlierExits((1, 4), 0, 12.0),
            "ranks 1, 4 had exited with code 0, the last 12.0 s before",
        ),
        (
            EarlierExits((0, 2), 7990, 0.0),
            "ranks 0, 2 and 7990 more had exited with code 0, the last 0.00 s before",
        ),
    ],
)
def test_peers_that_had_exited_are_in_headline(exits: EarlierExits, words: str) -> None:
    """In the report and between attempts. The name of a service is included."""
    cause = result(3, Exited(1), tail=TRACEBACK)
    of_service = replace(cause, service="eval", rank_in_service=1)
    first = f"clusterrun: rank 3 on gpu-07 failed: ValueError: boom ({words})"

    assert report_of(outcome(WorkerFailed(cause, earlier=exits), cause)).split("\n")[0] == first
    assert restart_text(outcome(WorkerFailed(cause, earlier=exits), cause), 1).startswith(first)
    named = report_of(outcome(WorkerFailed(of_service, earlier=exits), of_service)).split("\n")[0]
    assert named == f"clusterrun: eval rank 1 on gpu-07 failed: ValueError: boom (eval {words})"


@pytest.mark.parametrize(
    ("complaint", "hint"),
    [
        (
            "the following arguments are required: --local_rank",
            "it requires its local rank as an argument: add --pass-local-rank=local_rank",
        ),
        (
            "the following arguments are required: --local-rank/--local_rank, --lr",
            "it requires its local rank as an argument: add --pass-local-rank=local_rank",
        ),
        (
            "the following arguments are required: --local-rank",
            "it requires its local rank as an argument: add --pass-local-rank",
        ),
        (
            "unrecognized arguments: --local-rank=3",
            (
                "remove --pass-local-rank; for a script for torch 1, use"
                " --pass-local-rank=local_rank"
            ),
        ),
    ],
)
def test_hint_for_script_that_needs_local_rank(complaint: str, hint: str) -> None:
    """The hint follows from argparse's error."""
    tail = f"usage: train.py [-h] --local_rank N\ntrain.py: error: {complaint}\n"

    assert f"  {hint}" in report_of(failed(result(3, Exited(2), tail=tail))).splitlines()


def test_no_hint_after_fatal_error() -> None:
    """The script has already enabled faulthandler."""
    tail = "Fatal Python error: Segmentation fault\n\n  File x\n"

    assert "PYTHONFAULTHANDLER" not in report_of(
        failed(result(1, Killed(signal.SIGSEGV), tail=tail))
    )


def test_report_does_not_repeat_error_file() -> None:
    """Standard error has the same exception already."""
    cause = result(0, Exited(1), tail=TRACEBACK, error=TRACEBACK)

    assert report_of(failed(cause)).count("Traceback") == 1


@pytest.mark.parametrize(
    ("ran_for", "text"),
    [
        (0.004, "0.00 s after"),
        (9.99, "9.99 s after"),
        (59.96, "60.0 s after"),
        (312.2, "5 min 12 s after"),
        (3 * 3600 + 12 * 60 + 29, "3 h 12 min after"),
    ],
)
def test_duration_since_start(ran_for: float, text: str) -> None:
    """In seconds, minutes or hours."""
    report = report_of(failed(result(0, Exited(7), ran_for=ran_for)))

    assert text in report


def test_restart_text() -> None:
    """The text has the rank, its failure, and the number of restarts."""
    cause = result(3, Exited(1), tail=TRACEBACK, log="/logs/rank-3.err")
    ended = failed(cause, by_us(0, Killed(signal.SIGTERM)))

    assert restart_text(ended, 3) == lines("""
        clusterrun: rank 3 on gpu-07 failed: ValueError: boom
          exit code 1, local rank 3, pid 4003, at 2026-09-21 14:13:22, 12.3 s after its start
          its log: /logs/rank-3.err
        clusterrun: restarting all workers (restart 1 of 3)
    """)


def test_restart_text_quotes_last_line() -> None:
    ended = failed(result(3, Exited(1), tail="one\ntwo\n"))

    report = restart_text(ended, 3)

    assert report.splitlines()[2:] == [
        "  its last line: two",
        "clusterrun: restarting all workers (restart 1 of 3)",
    ]


def test_restart_text_names_replacements() -> None:
    """Lost nodes are counted separately from restarts."""
    lost, other = NodeLost(1, "n1"), NodeLost(2, "n2", "has been silent for 17 s")
    replacements = (Replacement(lost, "n7"), Replacement(other, "n2"), Replacement(lost, ""))
    ended = replace(outcome(lost), progress=RestartProgress(1, 3, replacements))

    assert restart_text(ended, 3) == lines("""
        clusterrun: node 1 (n1) is gone; n7 takes its place
        clusterrun: node 2 (n2) has been silent for 17 s; it has joined again
        clusterrun: node 1 (n1) is gone
        clusterrun: restarting all workers (3 nodes lost so far)
    """)


# Endings of workers, in words.


@pytest.mark.parametrize(
    ("exit_status", "words", "hint"),
    [
        (Exited(7), "failed: exit code 7", ""),
        (Exited(1), "failed: exit code 1", ""),
        (Exited(128), "failed: exit code 128", ""),
        (Exited(255), "failed: exit code 255", ""),
        (Exited(126), "failed: exit code 126", "may not execute"),
        (Exited(127), "failed: exit code 127", "can't find"),
        (Exited(137), "failed: exit code 137", "a shell exits with 137 if SIGKILL ended its"),
        (Killed(signal.SIGKILL), "was killed by SIGKILL", "memory"),
        (Killed(signal.SIGTERM), "was killed by SIGTERM", "clusterrun did not send it"),
        (Killed(signal.SIGABRT), "was killed by SIGABRT (abort)", "NCCL"),
        (Killed(signal.SIGBUS), "was killed by SIGBUS (bus error)", "/dev/shm"),
        (Killed(signal.SIGSEGV), "was killed by SIGSEGV (segmentation fault)", "FAULTHANDLER"),
        (Killed(50), "was killed by signal 50", ""),
        (NotStarted("exec", "No such file"), "could not be started: exec: No such file", ""),
    ],
)
def test_exit_status_in_words(exit_status: ExitStatus, words: str, hint: str) -> None:
    """Users do not know that SIGBUS often means a full /dev/shm; other codes only the script knows."""
    headline, _, *hints, _ = report_of(failed(result(0, exit_status))).splitlines()

    assert headline == f"clusterrun: rank 0 on gpu-07 {words}"
    assert [hint in line for line in hints] == ([True] if hint else [])


# What the relay has not printed.

NO_ROOM = "No space left on device"
NO_TIME = "not enough time at the end"


@pytest.mark.parametrize(
    ("losses", "exit_code", "line"),
    [
        (
            [LostOutput("log file a", 1, NO_ROOM)],
            3,
            f"exit code 3: 1 byte of log file a could not be written: {NO_ROOM}",
        ),
        (
            [LostOutput("log file a", 999_000, NO_ROOM), LostOutput("log file b", 1_000, "")],
            None,
            f"1.0 MB of log file a and 1 other could not be written: {NO_ROOM}",
        ),
        (
            [LostOutput("log file a", 3_000, ""), *[LostOutput("log file b", 1_000, "")] * 2],
            3,
            f"exit code 3: 5 kB of log file a and 2 others could not be written: {NO_TIME}",
        ),
    ],
)
def test_lost_output_text(losses: list[LostOutput], exit_code: int | None, line: str) -> None:
    """The line has the size, the files, the reason, and the exit code that this causes."""
    assert lost_output_text(losses, exit_code) == f"clusterrun: {line}"
