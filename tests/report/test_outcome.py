"""The exact text of the report at the end of a job."""

import json
import signal
import time
from textwrap import dedent

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


def result(
    rank: int, exit_status: ExitStatus, *, by_us: bool = False, tail: str = ""
) -> WorkerResult:
    """Return the result of a worker on host gpu-07 that ended at 14:13:22 UTC."""
    return WorkerResult(
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank % 8),
        host="gpu-07",
        pid=4000 + rank,
        exit_status=exit_status,
        stopped_by_us=by_us,
        clock=1_790_000_002.0,
        ran_for=12.34,
        tail=tail,
        log="",
        error="",
        out_of_memory="",
    )


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


def test_report_names_option_that_hid_output() -> None:
    """The report has its last output, and the option that hid it."""
    cause = replace(result(3, Exited(1), tail=TRACEBACK), log="/logs/rank-3.err")

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


def test_report_of_failed_rank() -> None:
    """The cause comes first, then its output and log, the other workers, and the exit code."""
    cause = replace(
        result(11, Exited(7), tail=f"loading\n{TRACEBACK}"),
        log="/logs/r/attempt-0/gpu-07-1/rank-11.err",
    )
    stopped = [result(rank, Killed(signal.SIGTERM), by_us=True) for rank in (8, 9, 10, 13, 14, 15)]

    assert report_of(failed(cause, *stopped, result(12, Exited(0)))) == lines("""
        clusterrun: rank 11 on gpu-07 failed: ValueError: boom
          exit code 7, local rank 3, pid 4011, at 2026-09-21 14:13:22, 12.3 s after its start

            Traceback (most recent call last):
              File "train.py", line 3, in <module>
                main()
            ValueError: boom

          its log: /logs/r/attempt-0/gpu-07-1/rank-11.err
          ranks 8-10, 13-15: stopped by clusterrun
          rank 12: ended earlier, exit code 0
        clusterrun: exit code 7, from rank 11
    """)


def test_report_shows_output_without_traceback() -> None:
    """``sys.exit("text")`` prints its text."""
    cause = result(0, Exited(1), tail="step 1\nno data in /data\n")

    assert report_of(failed(cause)) == lines("""
        clusterrun: rank 0 on gpu-07 failed: exit code 1
          local rank 0, pid 4000, at 2026-09-21 14:13:22, 12.3 s after its start

            step 1
            no data in /data

        clusterrun: exit code 1, from rank 0
    """)


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


def test_report_of_out_of_memory_kill() -> None:
    """The report has the evidence and no hints."""
    cause = replace(
        result(2, Killed(signal.SIGKILL)),
        out_of_memory="the cgroup /job (limit 64 MiB) counts 1 kill",
    )

    assert report_of(failed(cause)) == lines("""
        clusterrun: rank 2 on gpu-07 was killed by SIGKILL: out of memory
          local rank 2, pid 4002, at 2026-09-21 14:13:22, 12.3 s after its start
          out of memory: the cgroup /job (limit 64 MiB) counts 1 kill
        clusterrun: exit code 137, from rank 2: 128 + 9 for SIGKILL
    """)


def test_report_of_rank_whose_data_loader_ran_out_of_memory() -> None:
    """The rank fails with an exception, and the report also has the evidence."""
    tail = f"{TRACEBACK.replace('ValueError: boom', 'RuntimeError: DataLoader worker died')}"
    cause = replace(result(2, Exited(1), tail=tail), out_of_memory="1 kill in the cgroup /job")

    assert report_of(failed(cause), already_shown=True) == lines("""
        clusterrun: rank 2 on gpu-07 failed: RuntimeError: DataLoader worker died
          exit code 1, local rank 2, pid 4002, at 2026-09-21 14:13:22, 12.3 s after its start
          out of memory: 1 kill in the cgroup /job
        clusterrun: exit code 1, from rank 2
    """)


def test_report_of_worker_that_could_not_start() -> None:
    """The report has the failed step, but no pid and no duration."""
    exit_status = NotStarted("binding to CPUs 0-3", "Invalid argument")
    cause = replace(result(3, exit_status), pid=0, ran_for=0.0)
    other = result(4, NotStarted("", ""), by_us=True)

    assert report_of(failed(cause, other)) == lines("""
        clusterrun: rank 3 on gpu-07 could not be started: binding to CPUs 0-3: Invalid argument
          local rank 3, at 2026-09-21 14:13:22
          rank 4: not started
        clusterrun: exit code 126, from rank 3: could not be started
    """)


def test_report_shows_error_file_without_standard_error() -> None:
    """``@record`` has written the traceback."""
    written = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": TRACEBACK}}}
    cause = replace(result(0, Exited(1)), error=json.dumps(written))

    assert report_of(failed(cause)) == lines("""
        clusterrun: rank 0 on gpu-07 failed: ValueError: boom
          exit code 1, local rank 0, pid 4000, at 2026-09-21 14:13:22, 12.3 s after its start

          in its error file:
            Traceback (most recent call last):
              File "train.py", line 3, in <module>
                main()
            ValueError: boom

        clusterrun: exit code 1, from rank 0
    """)


def test_report_does_not_repeat_error_file() -> None:
    """Standard error has the same exception already."""
    cause = replace(result(0, Exited(1), tail=TRACEBACK), error=TRACEBACK)

    assert report_of(failed(cause)).count("Traceback") == 1


def test_other_ranks_are_grouped_by_exit_status() -> None:
    """Each group has a line."""
    others = [
        result(1, Exited(1), tail=TRACEBACK.replace("boom", "1 is gone")),
        result(2, Exited(1), tail=TRACEBACK.replace("boom", "2 is gone")),
        result(3, Killed(signal.SIGABRT)),
        result(4, Killed(signal.SIGKILL), by_us=True),
        result(5, Exited(0), by_us=True),
        result(6, Exited(3), by_us=True, tail=TRACEBACK),
        result(7, NotStarted("exec", "Permission denied")),
        replace(result(8, Killed(signal.SIGKILL)), out_of_memory="evidence"),
        result(9, Exited(1), tail=TRACEBACK.replace("boom", "connection reset by peer")),
        result(10, Killed(signal.SIGABRT), tail="terminate called: Connection closed by peer"),
    ]

    report = report_of(failed(result(0, Exited(7)), *others))

    assert report.splitlines()[2:-1] == [
        "  ranks 1-2: failed too, exit code 1; rank 1: ValueError: 1 is gone",
        "  rank 3: failed too, SIGABRT (abort)",
        "  rank 4: stopped by clusterrun, needed SIGKILL",
        "  rank 5: stopped by clusterrun, exit code 0",
        "  rank 6: stopped by clusterrun, exit code 3: ValueError: boom",
        "  rank 7: not started, exec: Permission denied",
        "  rank 8: failed too, out of memory",
        (
            "  rank 9: failed because a peer was gone, exit code 1: ValueError: connection reset by"
            " peer"
        ),
        "  rank 10: failed because a peer was gone, SIGABRT (abort)",
    ]


def test_ctrl_c_names_ranks_that_needed_sigkill() -> None:
    """A worker that another process killed is not named."""
    killed = result(0, Killed(signal.SIGKILL), by_us=True)
    by_others = replace(result(2, Killed(signal.SIGKILL), by_us=True), killed_by_others=True)
    results = [killed, result(1, Exited(0), by_us=True), by_others]

    assert report_of(outcome(Interrupted(signal.SIGINT), *results)).splitlines() == [
        "  rank 0 needed SIGKILL; --shutdown-timeout gives workers more time"
    ]


def test_sigterm_names_the_signal() -> None:
    """Workers that ended as asked are not named."""
    results = [result(0, Killed(signal.SIGTERM), by_us=True), result(1, Exited(0), by_us=True)]

    assert report_of(outcome(Interrupted(signal.SIGTERM), *results)) == (
        "clusterrun: exit code 143: clusterrun received SIGTERM"
    )


def test_sigterm_names_worker_that_failed_while_stopped() -> None:
    """An exception in a signal handler may mean a lost checkpoint."""
    saving = result(1, Exited(1), by_us=True, tail=TRACEBACK)

    report = report_of(
        outcome(Interrupted(signal.SIGTERM), result(0, Exited(0), by_us=True), saving)
    )

    assert report.splitlines() == [
        "  rank 1: stopped by clusterrun, exit code 1: ValueError: boom",
        "clusterrun: exit code 143: clusterrun received SIGTERM",
    ]


@pytest.mark.parametrize(
    ("reason", "last_line"),
    [
        (
            HelperFailed("fork server", "was killed by SIGKILL", signal.SIGKILL),
            "clusterrun: exit code 137, from the fork server: 128 + 9 for SIGKILL",
        ),
        (
            HelperFailed("relay", "exited with code 1", 0),
            "clusterrun: exit code 6, from clusterrun itself",
        ),
    ],
)
def test_report_of_lost_helper(reason: HelperFailed, last_line: str) -> None:
    """The report has the name of the helper and how it ended."""
    report = report_of(outcome(reason, result(0, Killed(signal.SIGKILL), by_us=True)))

    assert report.splitlines() == [
        f"clusterrun: error: the {reason.name} {reason.how}; the job was stopped",
        last_line,
    ]


def test_report_names_survivors() -> None:
    """For every reason, with the kernel function in which the process waits."""
    survivors = ("pid 12 (python, state D in nfs_wait)",)

    reports = [
        report_of(failed(result(0, Exited(7)), survivors=survivors)),
        report_of(outcome(Succeeded(), survivors=survivors)),
    ]

    for report in reports:
        assert "  SIGKILL did not end pid 12 (python, state D in nfs_wait)" in report.splitlines()


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
    report = report_of(failed(replace(result(0, Exited(7)), ran_for=ran_for)))

    assert text in report


def test_restart_text() -> None:
    """The text has the rank, its failure, and the number of restarts."""
    cause = replace(result(3, Exited(1), tail=TRACEBACK), log="/logs/rank-3.err")
    ended = failed(cause, result(0, Killed(signal.SIGTERM), by_us=True))

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


HANG = Hung(
    600.0, (3, 17), "62 ranks are in all_reduce at train.py:88; ranks 3, 17 are in f at d.py:4"
)


def test_report_of_hang() -> None:
    """The report has the stragglers and positions, but not the stopped workers."""
    ended = outcome(HANG, result(0, Killed(signal.SIGTERM), by_us=True))

    assert report_of(ended) == lines("""
        clusterrun: error: the job hung: no rank printed or exited for 600 s (--hang-timeout)
          the others waited for ranks 3, 17
          62 ranks are in all_reduce at train.py:88; ranks 3, 17 are in f at d.py:4
        clusterrun: exit code 7: the job hung
    """)
    assert report_of(outcome(Hung(60.0, (), ""))).count("\n") == 1
    assert report_of(outcome(Hung(60.0, (), "", HangSign.STILL))).startswith(
        "clusterrun: error: the job hung: ranks printed, but no main thread ran for 60 s (--hang-timeout)"
    )


def test_report_of_suspension() -> None:
    """Ranks that never called suspend.requested, and ranks that failed after saving."""
    ended = outcome(
        Suspended("SIGTERM", 12, 6.0, 99, silent=(2, 3)),
        result(0, Exited(9), by_us=True),
        result(1, Exited(9), by_us=True),
        result(2, Killed(signal.SIGTERM), by_us=True),
        result(4, Exited(0), by_us=True),
    )

    assert report_of(ended) == lines("""
          ranks 2-3 never called suspend.requested()
          ranks 0-1 had saved, and then ended with exit code 9
        clusterrun: exit code 99: suspended at step 12, 6.00 s after SIGTERM
    """)


@pytest.mark.parametrize(
    ("unsaved", "who"), [((1,), "rank 1"), ((1, 2, 3), "ranks 1-3"), ((), "the ranks")]
)
def test_report_of_failed_suspension(unsaved: tuple[int, ...], who: str) -> None:
    """The job has not been suspended."""
    ended = outcome(NotSuspended("SIGTERM", 12, 30.0, unsaved), result(0, Exited(0), by_us=True))

    assert report_of(ended) == lines(f"""
        clusterrun: error: not suspended: {who} had not saved 30 s (--suspend-grace) after all ranks were asked to save at step 12
        clusterrun: exit code 7: not all ranks saved in time after SIGTERM
    """)


# Endings of workers, in words.


@pytest.mark.parametrize(
    ("exit_status", "words"),
    [
        (Exited(7), "failed: exit code 7"),
        (Killed(signal.SIGKILL), "was killed by SIGKILL"),
        (Killed(signal.SIGSEGV), "was killed by SIGSEGV (segmentation fault)"),
        (Killed(signal.SIGBUS), "was killed by SIGBUS (bus error)"),
        (Killed(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
        (NotStarted("exec", "No such file"), "could not be started: exec: No such file"),
    ],
)
def test_headline_of_exit_status(exit_status: ExitStatus, words: str) -> None:
    headline, *_ = report_of(failed(result(0, exit_status))).splitlines()

    assert headline == f"clusterrun: rank 0 on gpu-07 {words}"


@pytest.mark.parametrize(
    ("exit_status", "hint"),
    [
        (Killed(signal.SIGKILL), "memory"),
        (Killed(signal.SIGBUS), "/dev/shm"),
        (Killed(signal.SIGABRT), "NCCL"),
        (Killed(signal.SIGTERM), "clusterrun did not send it"),
        (Exited(137), "a shell exits with 137 if SIGKILL ended its program"),
        (Exited(127), "can't find"),
        (Exited(126), "may not execute"),
    ],
)
def test_hint_of_exit_status(exit_status: ExitStatus, hint: str) -> None:
    """Users do not know that SIGBUS often means a full /dev/shm."""
    assert hint in report_of(failed(result(0, exit_status))).splitlines()[2]


@pytest.mark.parametrize(
    "exit_status", [Exited(1), Exited(128), Exited(255), Killed(50), NotStarted("", "")]
)
def test_exit_status_without_hint(exit_status: ExitStatus) -> None:
    """Only the script knows the meaning of other codes."""
    assert report_of(failed(result(0, exit_status))).count("\n") == 2


# One report of those of all nodes.


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
