"""The exit code is that of the worker that caused the end; the report names it and its reason."""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import Ended, Launcher, await_text, node_options

HOST = os.uname().nodename

DATE = re.compile(r"at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
DURATION = re.compile(r"\d+\.\d+ s after")


def report(ended: Ended) -> str:
    """Return the launcher's own lines, with T and N for times."""
    lines = ended.err[ended.err.index("clusterrun: ") :]
    return DURATION.sub("N s after", DATE.sub("at T", lines))


def test_successful_job_prints_nothing(clusterrun: Launcher) -> None:
    job = clusterrun.script("", workers=2)

    assert job.ended() == (0, "", "")


# How rank 1 ends, and the report that follows.
ENDS = {
    "sys.exit(7)": """\
failed: exit code 7
  {worker}
  rank 0: stopped by clusterrun
clusterrun: exit code 7, from rank 1
""",
    "sys.exit('no data in /data')": """\
failed: exit code 1
  {worker}

    no data in /data

  rank 0: stopped by clusterrun
clusterrun: exit code 1, from rank 1
""",
    "raise ValueError('boom')": """\
failed: ValueError: boom
  exit code 1, {worker}

    Traceback (most recent call last):
      File "{script}", line 5, in <module>
        raise ValueError('boom')
    ValueError: boom

  rank 0: stopped by clusterrun
clusterrun: exit code 1, from rank 1
""",
    "signal.raise_signal(signal.SIGKILL)": """\
was killed by SIGKILL
  {worker}
  clusterrun did not send it; \
the kernel (out of memory), the scheduler (at a limit) or a person did
  rank 0: stopped by clusterrun
clusterrun: exit code 137, from rank 1: 128 + 9 for SIGKILL
""",
    "signal.raise_signal(signal.SIGSEGV)": """\
was killed by SIGSEGV (segmentation fault)
  {worker}
  usually a bug in native code or a stack overflow; \
--env PYTHONFAULTHANDLER=1 prints the Python stack
  rank 0: stopped by clusterrun
clusterrun: exit code 139, from rank 1: 128 + 11 for SIGSEGV
""",
    "signal.raise_signal(signal.SIGTERM)": """\
was killed by SIGTERM
  {worker}
  clusterrun did not send it; the scheduler or a person did
  rank 0: stopped by clusterrun
clusterrun: exit code 143, from rank 1: 128 + 15 for SIGTERM
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_report_and_exit_code_of_failed_worker(clusterrun: Launcher, end: str) -> None:
    job = clusterrun.script(
        f"""
        import os, signal, sys, time
        if os.environ["RANK"] == "0": time.sleep(60)
        print("pid", os.getpid(), flush=True)
        {end}
        """,
        workers=2,
    )

    ended = job.ended()

    (pid,) = job.numbers("pid")
    worker = f"local rank 1, pid {pid}, at T, N s after its start"
    expected = ENDS[end].format(worker=worker, script=clusterrun.folder / "script0.py")
    assert report(ended) == f"clusterrun: rank 1 on {HOST} {expected}"
    assert f"clusterrun: exit code {ended.code}, " in expected
    assert "no data" not in end or "[rank 1] no data in /data\n" in ended.err


def test_traceback_of_single_worker_is_printed_once(clusterrun: Launcher) -> None:
    ended = clusterrun.script('raise ValueError("boom")').ended()

    assert ended.code == 1
    assert ended.err.count("Traceback") == 1
    assert re.fullmatch(
        rf"clusterrun: rank 0 on {HOST} failed: ValueError: boom\n"
        r"  exit code 1, local rank 0, pid \d+, at T, N s after its start\n"
        r"clusterrun: exit code 1, from rank 0\n",
        report(ended),
    )


def test_program_that_can_not_be_executed(clusterrun: Launcher) -> None:
    """The exit code is 126, as in a shell. No restart follows."""
    program = clusterrun.folder / "program"
    program.write_bytes(b"neither ELF nor #!")
    program.chmod(0o755)

    words = ("--max-restarts", "3", "--no-python", str(program))
    ended = clusterrun.command(*words, workers=1).ended()

    assert ended.code == 126
    assert report(ended) == dedent(f"""\
        clusterrun: rank 0 on {HOST} could not be started: execute {program}: Exec format error:\
 the file has no first line such as #!/bin/bash
          local rank 0, at T
          not restarted: a worker that can't be started now can't be started the next time either
        clusterrun: exit code 126, from rank 0: could not be started
        """)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "#!/bin/sh\r\nexit\r\n",
            "its first line ends in a carriage return, as on Windows (dos2unix {})",
        ),
        ("#!/nowhere/sh -e\nexit\n", "/nowhere/sh, which its first line names"),
        ("\x7fELF\x01\x01\x01", "the file is built for a different architecture"),
        ("echo\n", "the file has no first line such as #!/bin/bash"),
    ],
)
@pytest.mark.parametrize("is_on_path", [False, True])
def test_reason_why_script_can_not_be_executed(
    clusterrun: Launcher, content: str, why: str, *, is_on_path: bool
) -> None:
    """The kernel says "No such file" if the interpreter in the first line is missing.

    A folder of PATH that can't be searched is not the reason.
    """
    program = clusterrun.folder / "train.sh"
    program.write_bytes(content.encode())
    program.chmod(0o755)
    endless = clusterrun.folder / "endless"
    endless.symlink_to(endless)
    path = os.pathsep.join((str(endless), os.environ["PATH"], str(clusterrun.folder)))
    name = program.name if is_on_path else str(program)

    ended = clusterrun.command("--no-python", name, workers=1, environ={"PATH": path}).ended()

    assert ended.code == 126
    assert f": {why.format(program)}\n" in report(ended)


def test_program_that_may_be_executed_is_found_behind_another(clusterrun: Launcher) -> None:
    """As in a shell: a file on PATH that is not executable is passed over."""
    folders = [clusterrun.folder / "first", clusterrun.folder / "second"]
    for folder in folders:
        folder.mkdir()
        (folder / "train").write_text("#!/bin/sh\necho $0\n")
    (folders[1] / "train").chmod(0o755)
    path = os.pathsep.join((*map(str, folders), os.environ["PATH"]))

    ended = clusterrun.command("--no-python", "train", environ={"PATH": path}).ended()

    assert (ended.code, ended.out) == (0, f"{folders[1]}/train\n"), ended.err


def test_first_of_four_failed_ranks_is_the_cause(clusterrun: Launcher) -> None:
    """The report lists ranks that fail when they are stopped, and a rank that had exited with 0."""
    go = clusterrun.folder / "go"
    os.mkfifo(go)
    job = clusterrun.script(
        """
        import os, signal, sys, time
        rank = os.environ["RANK"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
        print(f"pid-of-{rank}", os.getpid(), flush=True)
        if rank == "0":
            sys.exit()
        if rank == "2":
            open("go").close()
            sys.exit(5)
        while True: time.sleep(0.1)
        """,
        "--events=events",
        workers=4,
    )
    job.numbers(r"pid-of-\d", 4)
    await_text(clusterrun.folder / "events", '"exited"')
    # Ends within half a second of each other are taken for chance.
    time.sleep(0.5)

    go.write_text("")
    ended = job.ended()

    assert ended.code == 5
    earlier = r"\(rank 0 had exited with code 0 \S+ s before\)"
    assert re.search(rf"rank 2 on {HOST} failed: exit code 5 {earlier}\n", report(ended))
    assert "  rank 0: ended earlier, exit code 0\n" in report(ended)
    assert "  ranks 1, 3: stopped by clusterrun, exit code 6\n" in report(ended)
    assert ended.err.endswith("clusterrun: exit code 5, from rank 2\n")


def test_rank_that_lost_its_peer_is_not_the_cause(clusterrun: Launcher) -> None:
    """The peer fails later, with the cause."""
    job = clusterrun.script(
        """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print("ready", flush=True)
        if os.environ["RANK"] == "0":
            open("go").close()
            sys.exit("RuntimeError: Connection closed by peer [127.0.0.1]:4242")
        signal.sigwait({signal.SIGTERM})
        raise ValueError("the true reason")
        """,
        workers=2,
    )
    os.mkfifo(clusterrun.folder / "go")
    job.wait_for("ready", 2)

    (clusterrun.folder / "go").write_text("")
    ended = job.ended()

    assert ended.code == 1
    assert report(ended).startswith(
        f"clusterrun: rank 1 on {HOST} failed: ValueError: the true reason\n"
    )
    assert "  rank 0: failed because a peer was gone, exit code 1\n" in report(ended)
    assert ended.err.endswith("clusterrun: exit code 1, from rank 1\n")


def test_error_file_is_read_and_copied_to_that_of_the_outer_launcher(clusterrun: Launcher) -> None:
    """Torch's @record writes TORCHELASTIC_ERROR_FILE."""
    parents_file = clusterrun.folder / "error.json"
    ended = clusterrun.script(
        """
        import os, sys
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            # Only the file has the reason.
            sys.stderr = open(os.devnull, "w")
            raise ValueError("boom")

        main()
        """,
        environ={"TORCHELASTIC_ERROR_FILE": str(parents_file)},
        workers=2,
    ).ended()

    assert ended.code == 1
    assert re.search(rf"rank [01] on {HOST} failed: ValueError: boom\n", report(ended))
    assert "\n  in its error file:\n" in report(ended)
    assert json.loads(parents_file.read_text())["message"]["message"] == "ValueError: boom"


def test_unwritable_error_file_of_outer_launcher(clusterrun: Launcher) -> None:
    """The report is printed all the same."""
    ended = clusterrun.script(
        """
        import json, os, sys
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "ValueError: boom"}}, file)
        sys.exit(3)
        """,
        environ={"TORCHELASTIC_ERROR_FILE": str(clusterrun.folder / "absent" / "error.json")},
        workers=2,
    ).ended()

    assert ended.code == 3
    assert "ValueError: boom" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_interpreter_that_is_not_python_is_usage_error(clusterrun: Launcher, method: str) -> None:
    job = clusterrun.script("", "--python", "/bin/true", "--start-method", method)

    problem = "/bin/true exited with code 0 before it was ready to start workers"
    hint = "give a Python 3.8 or newer with --python"
    assert job.ended() == (2, "", f"clusterrun: error: {problem}\n  {hint}\n")


def test_earliest_exception_is_the_cause(clusterrun: Launcher) -> None:
    """A rank may exit long after its exception, because of an exit handler."""
    ended = clusterrun.script(
        """
        import atexit, os, sys, time

        def stay():
            open("failed", "w").close()
            time.sleep(30)

        if os.environ["RANK"] == "0":
            atexit.register(stay)
            raise ValueError("the cause")
        while not os.path.exists("failed"):
            time.sleep(0.01)
        sys.exit(9)
        """,
        *("--start-method", "fork", "--shutdown-timeout", "0.2"),
        workers=2,
    ).ended()

    assert ended.code == 1
    assert f"clusterrun: rank 0 on {HOST} failed: ValueError: the cause\n" in ended.err
    assert "\n  rank 1: failed too, exit code 9\n" in ended.err


def test_traceback_is_complete_if_another_rank_fails_meanwhile(clusterrun: Launcher) -> None:
    ended = clusterrun.script(
        """
        import os, pathlib, sys, time
        failing = pathlib.Path("failing")

        def slow_hook(*error):
            failing.touch()
            time.sleep(0.5)
            sys.__excepthook__(*error)

        if os.environ["RANK"] == "0":
            sys.excepthook = slow_hook
            raise ValueError("the cause")
        while not failing.exists():
            time.sleep(0.01)
        raise KeyError("a consequence")
        """,
        *("--start-method", "fork"),
        workers=2,
    ).ended()

    assert ended.code == 1
    assert f"clusterrun: rank 0 on {HOST} failed: ValueError: the cause\n" in ended.err
    assert "\n    ValueError: the cause\n" in ended.err
    assert "\n  rank 1: failed too, exit code 1: KeyError: 'a consequence'\n" in ended.err


@pytest.mark.needs("prlimit")
@pytest.mark.parametrize(
    ("options", "limits", "error", "hint"),
    [
        (
            ["--nproc-per-node=64"],
            "287",
            (
                "this node needs 288 open files for 64 workers, but its hard limit is 287"
                " (ulimit -Hn)"
            ),
            "raise it: ulimit -n 288 as root; Docker has --ulimit nofile=288, systemd LimitNOFILE=288",
        ),
        (
            node_options(100)[0],
            "60:120",
            (
                "this node needs 164 open files for connections to 100 nodes,"
                " but its hard limit is 120 (ulimit -Hn)"
            ),
            "raise it: ulimit -n 164 as root; Docker has --ulimit nofile=164, systemd LimitNOFILE=164",
        ),
    ],
    ids=["workers", "nodes"],
)
def test_too_few_open_files(
    clusterrun: Launcher, options: Sequence[str], limits: str, error: str, hint: str
) -> None:
    """The job ends before any worker starts. Node 0 has raised its soft limit."""
    words = (*options, "--no-python", "echo", "runs")

    ended = clusterrun.command(*words, around=("prlimit", f"--nofile={limits}")).ended()

    assert ended == (3, "", f"clusterrun: error: {error}\n  {hint}\n")


@pytest.mark.needs("prlimit")
@pytest.mark.parametrize("soft", [64, 288])
def test_just_enough_open_files_for_all_workers(clusterrun: Launcher, soft: int) -> None:
    """The soft limit does not matter. Workers get both limits of the launcher."""
    words = ("--nproc-per-node", "64", "--no-python", "sh", "-c", "ulimit -Sn; ulimit -Hn")

    ended = clusterrun.command(*words, around=("prlimit", f"--nofile={soft}:288")).ended()

    assert ended.code == 0, ended.err
    numbers = [line.rpartition(" ")[2] for line in ended.out.splitlines()]
    assert sorted(numbers) == sorted([str(soft), "288"] * 64)


@pytest.mark.needs("root", "setpriv", "prlimit")
def test_soft_limit_of_unprivileged_user_is_raised(clusterrun: Launcher) -> None:
    """The kernel counts descriptors that are being sent to helper processes, except for root."""
    rights = "+dac_read_search,+dac_override"
    user = ("setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={rights}")
    around = (*user, f"--ambient-caps={rights}", "prlimit", "--nofile=64:4096")

    ended = clusterrun.command(
        *("--nproc-per-node", "200", "--no-python", "true"), around=around
    ).ended()

    assert ended.code == 0, ended.err


@pytest.mark.needs("prlimit")
def test_forked_worker_has_limits_of_the_launcher(clusterrun: Launcher) -> None:
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"

    ended = clusterrun.script(
        script, "--preload", "json", workers=2, around=("prlimit", "--nofile=64:200")
    ).ended()

    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[rank 0] (64, 200)", "[rank 1] (64, 200)"]


def test_report_names_files_of_flight_recorder(clusterrun: Launcher) -> None:
    """There is no NCCL here; torch writes such files before NCCL's watchdog aborts."""
    ended = clusterrun.script(
        """
        import os
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "w") as file:
            file.write("the last collectives")
        os.abort()
        """,
        workers=1,
        environ={"TORCH_FR_DUMP_TEMP_FILE": f"{clusterrun.folder}/trace_"},
    ).ended()

    assert ended.code == 128 + signal.SIGABRT
    assert (
        f"torch's flight recorder (torchfrtrace reads it): {clusterrun.folder}/trace_0\n"
        in ended.err
    )


UNPRIVILEGED = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())

ORDINARY_USER = (
    *("setpriv", "--reuid=54321", "--clear-groups"),
    # It may read the interpreter and the script in any folder.
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.mark.needs("root", "setpriv")
@pytest.mark.skipif(UNPRIVILEGED <= 80, reason="any user may listen at any port here")
@pytest.mark.parametrize(
    ("words", "environ", "origin"),
    [
        (("--master-port=80",), {}, "--master-port"),
        (("--exec",), {"PET_MASTER_PORT": "80"}, "PET_MASTER_PORT"),
        (("--nnodes=2", "--master-addr=127.0.0.1"), {"MASTER_PORT": "80"}, "MASTER_PORT"),
        (("--nnodes=2", "--rdzv-endpoint=127.0.0.1:80"), {}, "--rdzv-endpoint"),
    ],
)
def test_privileged_port_is_an_error(
    words: tuple[str, ...], environ: dict[str, str], origin: str, clusterrun: Launcher
) -> None:
    """No node is waited for, and no worker starts."""
    ended = clusterrun.script("print(1)", *words, environ=environ, around=ORDINARY_USER).ended()

    option = "--rdzv-endpoint" if "rdzv" in origin else "--master-port"
    port = rf"port 80 \({origin}\) can't be used on \S.* by this user"
    assert (ended.code, ended.out) == (3, ""), ended.err
    assert re.search(f"error: {port}: ports below {UNPRIVILEGED} need root\n", ended.err)
    assert ended.err.endswith(
        f"  give one from {UNPRIVILEGED} to 65535, the same on all nodes, with {option}\n"
    )


IN_A_DELETED_FOLDER = ("sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--events=events.jsonl",), "--events events.jsonl: the current folder has been deleted"),
        (("doctor", "--log-dir=logs"), "the current folder has been deleted"),
        (("bench", "--nproc=1"), "clusterrun-bench can't be written: No such file or directory"),
    ],
)
def test_command_that_needs_deleted_current_folder(
    words: tuple[str, ...], message: str, clusterrun: Launcher
) -> None:
    program = ("--no-python", "true") if words[0] != "doctor" else ()
    ended = clusterrun.command(*words, *program, around=IN_A_DELETED_FOLDER).ended()

    assert ended.code == 3
    assert f"clusterrun: error: {message}\n" in ended.err
    assert "the current folder has been deleted" in ended.err


def test_script_runs_in_deleted_current_folder(clusterrun: Launcher) -> None:
    """A notice says what is slower, and why."""
    ended = clusterrun.script("print('here')", workers=2, around=IN_A_DELETED_FOLDER).ended()

    assert (ended.code, ended.out.count("here")) == (0, 2)
    assert "clusterrun: workers are spawned: the current folder has been deleted" in ended.err


def test_rank_that_exited_with_0_is_named_if_its_peers_fail_in_a_collective(
    clusterrun: Launcher,
) -> None:
    """The peers may fail before the agent notices the exit."""
    ended = clusterrun.script(
        """
        import os
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            os._exit(0)
        dist.barrier()
        """,
        workers=3,
    ).ended(90)

    assert ended.code == 1
    assert re.search(
        r"^clusterrun: rank [02] on \S+ failed: .*"
        r" \(rank 1 had exited with code 0 \d\.\d\d s before\)$",
        ended.err,
        re.MULTILINE,
    ), ended.err
