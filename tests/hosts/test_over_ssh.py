"""``--launcher ssh``: one command starts three hosts with a real sshd; each fault is a line."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import NamedTuple

import clusterrun as clusterrun_package
import pytest
from clusterrun.clients.ssh import hosts as over_ssh

from tests.contract.changed_times import command_with
from tests.contract.launched import COMMAND, Launcher
from tests.hosts.host import Host
from tests.hosts.ssh_hosts import OTHER_ID, OTHER_USER, SshHosts
from tests.hosts.stepping_ranks import SUM_OF_RANKS

ROOT = Path(__file__).parent.parent.parent

PRINT_RANK = """
    import os

    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    print("worker", *(os.environ[name] for name in names), os.uname().nodename, os.getcwd())
"""

SECRET = "correct-horse-battery"  # noqa: S105 - a test's

SEARCH_SECRET = f"""
    import os
    from pathlib import Path

    # In two parts: this script itself must not contain it.
    secret = "{SECRET[:9]}" + "{SECRET[9:]}"
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    print("variables", os.environ["FIRST"] == secret, os.environ["SECOND"] == secret)
    print("in command lines", sum(b"FIRST=" not in it and secret.encode() in it for it in lines))
    print("special", ascii(os.environ["SPECIAL"]))
    print("session", "SSH_CONNECTION" in os.environ, os.environ["HOME"])
"""

PRINT_ON_LOGIN = "echo welcome to this host; echo no news >&2; printf clusterrun\n"


def run(ssh: SshHosts, clusterrun: Launcher, script: str, *options: str) -> list[str]:
    """Run a script on all hosts; return its sorted output."""
    end = clusterrun.script(script, *ssh.options(), *options, around=ssh.client.around).ended()
    assert (end.code, end.err) == (0, ""), end
    return sorted(end.out.splitlines())


def test_one_command_starts_all_hosts(ssh: SshHosts, clusterrun: Launcher) -> None:
    """Ranks follow the list, and workers run in the same folder."""
    lines = run(ssh, clusterrun, PRINT_RANK, "--nproc-per-node", "2")

    folder = clusterrun.folder
    assert lines == [
        f"[rank {rank} n{rank // 2}] worker {rank} 6 2 {rank // 2} n0 n{rank // 2} {folder}"
        for rank in range(6)
    ]
    assert ssh.left(5) == []


@pytest.mark.long
def test_ranks_connect_at_master_addr(ssh: SshHosts, clusterrun: Launcher) -> None:
    assert run(ssh, clusterrun, SUM_OF_RANKS) == ["[rank 0 n0] sum 3"]


def test_proxy_jump_of_ssh_config(ssh: SshHosts, clusterrun: Launcher) -> None:
    """n1 and n2 are reached through n0."""
    ssh.configure("Host n1 n2\n    ProxyJump n0\n")
    script = """
    import os
    print("from", os.environ["SSH_CONNECTION"].split()[0])
    """

    origins = run(ssh, clusterrun, script)

    proxy = ssh.servers[0]
    from_proxy = [line.split()[-1] in {proxy.address, proxy.address6} for line in origins]
    assert from_proxy == [False, True, True], origins


@pytest.mark.long
def test_control_master_serves_next_job(
    ssh: SshHosts, clusterrun: Launcher, tmp_path: Path
) -> None:
    """The connection that ControlPersist keeps stays open after the command."""
    ssh.configure(
        f"Host n*\n    ControlMaster auto\n    ControlPersist 300\n    ControlPath {tmp_path}/%h\n"
    )
    words = ("ssh", "-F", str(ssh.config), "-O")
    try:
        outputs = [run(ssh, clusterrun, PRINT_RANK) for _ in range(2)]
        checks = [ssh.client.run(*words, "check", host.name) for host in ssh.servers]
    finally:
        for host in ssh.servers:
            ssh.client.run(*words, "exit", host.name)

    assert [len(lines) for lines in outputs] == [3, 3]
    assert [check.code for check in checks] == [0, 0, 0]


def test_slots_in_hostfile_are_workers(ssh: SshHosts, clusterrun: Launcher, tmp_path: Path) -> None:
    """Only the client reads the hostfile."""
    file = tmp_path / "hosts.txt"
    file.write_text("n0 slots=2\nn1:1\n")
    options = ("--launcher", "ssh", "--hostfile", str(file), "--ssh-options", f"-F {ssh.config}")

    end = clusterrun.script(PRINT_RANK, *options, around=ssh.client.around).ended()
    file.unlink()
    assert end.code == 0, end
    assert sorted(re.findall(r"worker (.*) n\d /", end.out)) == [
        "0 3 2 0 n0",
        "1 3 2 0 n0",
        "2 3 1 1 n0",
    ]


def test_job_file_sets_launcher_and_hosts(
    ssh: SshHosts, clusterrun: Launcher, tmp_path: Path
) -> None:
    """Each agent reads the same file and does not start others."""
    (tmp_path / "train.py").write_text(PRINT_RANK.replace("\n    ", "\n"))
    (tmp_path / "job.yaml").write_text(
        f"script: train.py\nlauncher: ssh\nhosts: n[0-1]\nssh_options: -F {ssh.config}\n"
        "nproc_per_node: 1\n"
    )

    end = clusterrun.command("--config", "job.yaml", around=ssh.client.around).ended()
    assert (end.code, end.err) == (0, ""), end
    assert sorted(re.findall(r"worker (\d \d)", end.out)) == ["0 2", "1 2"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_everywhere_job_file_locally_and_on_two_hosts(ssh: SshHosts) -> None:
    """It trains to 95 %; only --launcher differs."""
    words = (COMMAND, "--config", "configs/everywhere.yaml")

    here = ssh.client.run(*words, folder=ROOT, seconds=180)
    there = ssh.client.run(*words, *ssh.options("n0,n1"), folder=ROOT, seconds=180)

    assert (here.code, there.code) == (0, 0), (here, there)
    found = [re.findall(r"test accuracy ([\d.]+) %", end.out) for end in (here, there)]
    assert [float(accuracy) >= 95 for accuracies in found for accuracy in accuracies] == [True] * 2
    assert "[rank 0 n0] " in there.out


def test_variables_reach_hosts_but_no_command_line(ssh: SshHosts, clusterrun: Launcher) -> None:
    """Workers get the client's variables; variables of the ssh session are the host's."""
    environ = {"FIRST": SECRET, "SPECIAL": "a 'b' \"c\"\n\\ $HOME \udce9", "HOME": "/elsewhere"}
    options = (*ssh.options("n1"), "--env", f"SECOND={SECRET}")

    end = clusterrun.script(
        SEARCH_SECRET, *options, around=ssh.client.around, environ=environ
    ).ended()
    assert (end.code, end.err) == (0, ""), end
    lines = end.out.splitlines()
    # The user's own --env has it.
    assert lines[:2] == ["variables True True", "in command lines 1"]
    assert lines[2] == f"special {environ['SPECIAL']!a}"
    assert lines[3] == f"session True {ssh.folder(ssh.servers[1])}"


def test_failure_is_reported_once(ssh: SshHosts, clusterrun: Launcher) -> None:
    """The exit code is the failing worker's."""
    script = """
    import os, pathlib, sys, time

    pathlib.Path("begun" + os.environ["RANK"]).touch()
    if os.environ["RANK"] == "4":
        while len(list(pathlib.Path().glob("begun?"))) < 6:
            time.sleep(0.01)
        sys.exit(9)
    time.sleep(60)
    """
    options = (*ssh.options(), "--nproc-per-node", "2")

    end = clusterrun.script(script, *options, around=ssh.client.around).ended()

    assert end.code == 9, end
    assert end.err.count("rank 4 on n2 failed: exit code 9\n") == 1
    assert "stopped by clusterrun\n" in end.err
    assert end.err.count("clusterrun: exit code 9, from rank 4") == 1
    assert ssh.left(5) == []


def test_missing_interpreter_for_workers_is_reported_by_hosts(
    ssh: SshHosts, clusterrun: Launcher
) -> None:
    """Nothing starts."""
    options = (*ssh.options(), "--python", "/nowhere/python")

    end = clusterrun.script(PRINT_RANK, *options, around=ssh.client.around).ended()

    assert end.code == 2
    assert end.err.startswith(
        "clusterrun: error: 3 of 3 hosts are not ready; nothing was started\n"
        "  n0, n1, n2: --python: /nowhere/python does not exist\n"
    ), end.err


class NotReady(NamedTuple):
    """Why a host is not ready, the line about it, and the exit code."""

    cause: Callable[[SshHosts, Host], None]
    """Applied to n1."""
    text: str
    code: int = 4
    hosts: str = "n0,n1"


def nothing(_ssh: SshHosts, _n1: Host) -> None:
    """Change nothing."""


FAULTS = {
    "host down": NotReady(lambda _, n1: n1.cut(), "  n1: it does not answer\n", hosts="n0,n1,n2"),
    "no server": NotReady(nothing, "  n3: no ssh server listens there\n", hosts="n0,n3"),
    "no such name": NotReady(nothing, "  n9: its name does not resolve\n", hosts="n0,n9"),
    "wrong host key": NotReady(
        SshHosts.change_known_key, "  n1: its host key differs from the one in known_hosts\n"
    ),
    "unknown host key": NotReady(
        SshHosts.forget_key,
        "  n1: its host key is not known\n    connect once by hand, and compare the key:\n",
    ),
    "password required": NotReady(
        SshHosts.refuse_key,
        "  n1: it accepts none of your keys, and asks for a password\n    give it your key:\n",
    ),
    "no shell": NotReady(
        lambda ssh, n1: ssh.set_shell(n1, "/usr/sbin/nologin"),
        "  n1: its login shell ended with 1 instead of running our command; it printed:\n",
    ),
    "no interpreter": NotReady(
        lambda ssh, n1: ssh.hide(n1, Path(COMMAND)),
        f"  n1: there is no interpreter {Path(COMMAND).parent}/python",
        code=2,
    ),
    "no clusterrun": NotReady(
        lambda ssh, n1: ssh.hide(n1, Path(clusterrun_package.__file__).parent),
        " has no clusterrun there\n    install it there:\n",
        code=2,
    ),
    # Only the user who runs the test can enter its folder.
    "another user's home": NotReady(
        SshHosts.log_in_as_other, f"  n1: {OTHER_USER} can't enter /", code=2
    ),
    "a shell that never ends": NotReady(
        lambda ssh, n1: ssh.set_start_file(n1, ".bashrc", "cat > /dev/null\n"),
        "  n1: it does not answer\n",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_host_that_is_not_ready_is_named(fault: str, ssh: SshHosts, clusterrun: Launcher) -> None:
    """Nothing starts on any host."""
    cause, text, code, hosts = FAULTS[fault]
    cause(ssh, ssh.servers[1])
    # Otherwise a slow host must not become a second fault.
    seconds = 10.0 if "does not answer" in text else 60.0
    clusterrun.program = command_with(clusterrun.folder, over_ssh, "SECONDS_TO_BE_READY", seconds)

    end = clusterrun.script(PRINT_RANK, *ssh.options(hosts), around=ssh.client.around).ended()

    assert (end.code, end.out) == (code, "")
    assert "is not ready; nothing was started\n" in end.err
    # The kernel may report a host that is down before that time is over.
    printed = end.err.replace("it did not answer within 10 s", "it does not answer")
    assert text in printed, end.err
    for host in ssh.servers:
        host.join()
    assert ssh.left(5) == []


def test_missing_working_folder_is_named(ssh: SshHosts, clusterrun: Launcher) -> None:
    ssh.hide(ssh.servers[1], clusterrun.folder)

    end = clusterrun.script(PRINT_RANK, *ssh.options("n0,n1"), around=ssh.client.around).ended()

    assert (end.code, end.out) == (2, "")
    assert f"  n1: root can't enter {clusterrun.folder}: No such file or directory\n" in end.err


def test_login_as_another_user(ssh: SshHosts, clusterrun: Launcher) -> None:
    """The job runs as the user of ssh_config on all hosts."""
    ssh.log_in_as_other(*ssh.servers[:2])
    script = """
    import os
    print("user", os.getuid(), os.getgid(), os.environ["USER"])
    """

    with TemporaryDirectory() as shared:
        Path(shared).chmod(0o755)
        (Path(shared) / "train.py").write_text(dedent(script))
        job = clusterrun.command(
            *ssh.options("n0,n1"), "train.py", around=(*ssh.client.around, "env", "-C", shared)
        )
        end = job.ended()

    assert (end.code, end.err) == (0, ""), end
    user = f"user {OTHER_ID} {OTHER_ID} {OTHER_USER}"
    assert sorted(end.out.splitlines()) == [f"[rank {n} n{n}] {user}" for n in range(2)]
    assert ssh.left(5) == []


OTHER_SHELLS = {
    "/usr/bin/fish": ".config/fish/config.fish",
    "/bin/csh": ".cshrc",
    "/bin/dash": ".profile",
}
"""The file that each reads when it starts."""


def test_other_login_shells(ssh: SshHosts, clusterrun: Launcher) -> None:
    """The command that ssh runs means the same in each."""
    for host, shell in zip(ssh.servers, OTHER_SHELLS, strict=True):
        ssh.set_shell(host, shell)

    lines = run(ssh, clusterrun, PRINT_RANK)

    assert [line[:24] for line in lines] == [f"[rank {n} n{n}] worker {n} 3 1" for n in range(3)]


def test_output_of_login_shells_is_dropped(ssh: SshHosts, clusterrun: Launcher) -> None:
    files = {"/bin/bash": ".bashrc", **OTHER_SHELLS}
    for host, shell in zip(ssh.servers, files, strict=False):
        ssh.set_shell(host, shell)
        text = PRINT_ON_LOGIN.replace(" >&2", "") if shell == "/bin/csh" else PRINT_ON_LOGIN
        ssh.set_start_file(host, files[shell], text)

    lines = run(ssh, clusterrun, PRINT_RANK)

    assert [line[:24] for line in lines] == [f"[rank {n} n{n}] worker {n} 3 1" for n in range(3)]
