"""``--check COMMAND``: each node runs it before it joins, and again after its rank has failed first."""

import signal
from textwrap import dedent

import pytest
from free_ports import free_port

from tests.contract.launched import Ended, Job, Launcher, node_options
from tests.waiting import wait_until

FAILS_IN_THE_FIRST_ATTEMPT = """
    import os, pathlib, sys, time
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (rank, attempt) == ("1", "0"):
        pathlib.Path("bad-" + os.environ["NODE"]).touch()
        sys.exit(7)
    if attempt == "0":
        time.sleep(100)
    print("rank", rank, "on node", os.environ["NODE"])
"""
"""A script of two nodes with one rank each."""

FAULT = 'fails its check: "sh check.sh" exited with code 1: GPU 3 of node 1 is lost'


@pytest.fixture
def check(clusterrun: Launcher) -> tuple[str, str]:
    """Return the option for a check that fails on node N if the file ``bad-N`` exists."""
    (clusterrun.folder / "check.sh").write_text(
        "echo check of node $NODE >> checks\n"
        "test ! -e bad-$NODE || { echo testing; echo GPU 3 of node $NODE is lost >&2; exit 1; }\n"
    )
    return "--check", "sh check.sh"


def start_nodes(clusterrun: Launcher, script: str, *options: str, nodes: int = 2) -> list[Job]:
    """Start the agents of all nodes on this machine."""
    path = clusterrun.folder / "train.py"
    path.write_text(dedent(script))
    return [
        clusterrun.command(*of_node, *options, str(path), workers=1, environ={"NODE": str(node)})
        for node, of_node in enumerate(node_options(nodes))
    ]


def codes(ends: list[Ended]) -> list[int]:
    return [end.code for end in ends]


def test_passing_check_runs_once_per_node(clusterrun: Launcher) -> None:
    """It has the job's environment and no standard input. Its output is not shown."""
    script = clusterrun.folder / "check.sh"
    script.write_text(
        "echo checked; echo ran >> runs\n"
        'test "$OF_JOB" = here && test -z "$CLUSTERRUN_CHECK" && ! read line\n'
    )
    done = clusterrun.script(
        "print('runs')",
        "--env",
        "OF_JOB=here",
        workers=2,
        environ={"CLUSTERRUN_CHECK": "sh check.sh"},
    ).ended()

    assert (done.code, done.err) == (0, ""), done
    assert done.out.count("runs\n") == 2
    assert (clusterrun.folder / "runs").read_text() == "ran\n"


@pytest.mark.parametrize(
    ("command", "how", "last_lines"),
    [
        (
            "seq 100; echo bad >&2; exit 4",
            "exited with code 4: bad",
            [*map(str, range(82, 101)), "bad"],
        ),
        (
            "echo testing; exec sleep 100",
            "did not end within 0.5 s (--rdzv-timeout): testing",
            ["testing"],
        ),
        ("kill -SEGV $$", "was killed by SIGSEGV", []),
    ],
)
def test_failing_check_is_an_error_with_its_last_lines(
    clusterrun: Launcher, command: str, how: str, last_lines: list[str]
) -> None:
    """No worker starts."""
    time = () if "sleep" not in command else ("--rdzv-timeout", "0.5")
    done = clusterrun.script("print('runs')", "--check", command, *time, workers=1).ended()

    assert (done.code, done.out) == (3, "")
    *lines, error = done.err.splitlines()
    assert error == f'clusterrun: error: this node fails its check: "{command}" {how}'
    assert [line.strip() for line in lines[2:]] == last_lines


def test_no_process_of_the_check_is_left(clusterrun: Launcher) -> None:
    """One check has passed; the launcher of the other one is killed."""
    passed = clusterrun.script("print('runs')", "--check", "setsid sleep 100 &", workers=1)
    killed = clusterrun.script(
        "print('runs')", "--check", "setsid sleep 100 & touch began; sleep 100", workers=1
    )

    assert passed.ended().out == "runs\n"
    wait_until((clusterrun.folder / "began").exists, "the check has begun")
    killed.signal(signal.SIGKILL)
    killed.ended()
    assert (passed.left(), killed.left()) == ([], [])


@pytest.mark.parametrize(
    ("number", "line"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "received SIGTERM")],
)
def test_signal_ends_the_check(clusterrun: Launcher, number: int, line: str) -> None:
    job = clusterrun.script("print('runs')", "--check", "touch began; sleep 100", workers=1)
    wait_until((clusterrun.folder / "began").exists, "the check has begun")
    job.signal(number)

    code = 128 + number
    assert job.ended() == Ended(
        code,
        "",
        f"clusterrun: {line} before any worker was started; exit code {code}\n",
    )


@pytest.mark.parametrize("node", [0, 1])
def test_failing_check_of_any_node_ends_the_job(
    clusterrun: Launcher, check: tuple[str, str], node: int
) -> None:
    """Only that node prints the last lines."""
    (clusterrun.folder / f"bad-{node}").touch()
    ends = [
        job.ended() for job in start_nodes(clusterrun, "print('runs')", "--nnodes", "2", *check)
    ]

    assert codes(ends) == [3, 3], ends
    fault = FAULT.replace("node 1", f"node {node}")
    assert all(end.err.rstrip().endswith(fault) for end in ends), ends
    assert ["    testing\n" in end.err for end in ends] == [node == 0, node == 1]


def test_spare_replaces_node_that_fails_its_check(
    clusterrun: Launcher, check: tuple[str, str]
) -> None:
    """Node 0 prints why."""
    (clusterrun.folder / "bad-1").touch()
    options = ("--nnodes=2", "--spares", "1", *check)
    script = 'import os\nprint("rank", os.environ["RANK"], "on node", os.environ["NODE"])'
    ends = [job.ended() for job in start_nodes(clusterrun, script, *options, nodes=3)]

    assert codes(ends) == [0, 3, 0], ends
    assert [end.out for end in ends] == ["rank 0 on node 0\n", "", "rank 1 on node 2\n"]
    assert f"at 127.0.0.1: it {FAULT}\n" in ends[0].err


def test_failing_check_before_the_next_attempt_ends_the_job(
    clusterrun: Launcher, check: tuple[str, str]
) -> None:
    """The report has the failure of the rank."""
    options = ("--nnodes", "2", "--max-restarts", "1", *check)
    ends = [job.ended() for job in start_nodes(clusterrun, FAILS_IN_THE_FIRST_ATTEMPT, *options)]

    assert codes(ends) == [3, 3], ends
    for end in ends:
        assert "clusterrun: rank 1 on " in end.err
        assert "not restarted: node 1 (" in end.err
        assert end.err.endswith(f"{FAULT}\nclusterrun: exit code 3: a node has failed its check\n")
    assert "    testing\n" in ends[1].err


def test_spare_replaces_node_that_fails_its_check_before_the_next_attempt(
    clusterrun: Launcher, check: tuple[str, str]
) -> None:
    options = ("--nnodes=2", "--spares", "1", "--max-restarts", "1", *check)
    ends = [
        job.ended()
        for job in start_nodes(clusterrun, FAILS_IN_THE_FIRST_ATTEMPT, *options, nodes=3)
    ]

    assert codes(ends) == [0, 3, 0], ends
    assert [end.out for end in ends] == ["rank 0 on node 0\n", "", "rank 1 on node 2\n"]
    assert f"{FAULT}; " in ends[0].err
    assert ends[1].err.endswith("clusterrun: exit code 3: a node has failed its check\n")


@pytest.mark.long
def test_doctor_of_all_nodes_as_check(clusterrun: Launcher) -> None:
    """The doctors of both nodes rendezvous before the nodes do, and run no check."""
    variables = {
        "CLUSTERRUN_CHECK": f"{clusterrun.program} doctor",
        "CLUSTERRUN_NNODES": "2",
        "CLUSTERRUN_MASTER_ADDR": "127.0.0.1",
        "CLUSTERRUN_MASTER_PORT": str(free_port()),
    }
    jobs = [
        clusterrun.script(
            "print('runs')", workers=1, environ={**variables, "CLUSTERRUN_NODE_RANK": str(node)}
        )
        for node in range(2)
    ]

    ends = [job.ended() for job in jobs]
    assert [(end.code, end.out) for end in ends] == [(0, "runs\n")] * 2, ends
