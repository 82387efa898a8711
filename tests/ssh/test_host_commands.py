"""The command that each host gets."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.cli.splitting import split
from clusterrun.clients.ssh.remote import HostCommand, host_commands
from clusterrun.errors import UsageError
from clusterrun.job.resolve import resolve
from clusterrun.job.this_process import this_process

from tests.command_lines import FlagValue, command_line, flags_of

PROGRAM = ("true",)


def commands_for(flags: Mapping[str, FlagValue], environ: Mapping[str, str]) -> list[HostCommand]:
    """Return the commands of the hosts for these flags."""
    line = command_line({"launcher": "ssh", "no_python": True, **flags}, *PROGRAM)
    variables = {"PATH": "/usr/bin:/bin", **environ}
    resolved = resolve(line, variables, this_process("clusterrun"))
    assert resolved.over_ssh is not None
    return list(host_commands(resolved, resolved.over_ssh, line, variables))


def parsed(typed: list[str]) -> tuple[Mapping[str, FlagValue], tuple[str, ...]]:
    """Return the options and the program that an agent reads from these arguments."""
    line = split(typed, "clusterrun")
    return flags_of(line.options), line.words


def test_each_host_gets_its_rank_and_launcher_none() -> None:
    """The host list is expanded, and ssh's options are dropped."""
    commands = commands_for({"hosts": "n[2,1,7]", "ssh_options": "-p 5", "max_restarts": "1"}, {})

    for rank, command in enumerate(commands):
        options, program = parsed(command.argv)
        assert options == {
            "launcher": "none",
            "no_python": True,
            "max_restarts": "1",
            "hosts": "n2,n1,n7",
            "node_rank": str(rank),
        }
        assert program == PROGRAM
        assert command.folder == str(Path.cwd())


def test_env_flags_become_a_variable() -> None:
    """They are added to the existing variable, and are not on a command line."""
    (command,) = commands_for({"hosts": "a", "env": ("B=2", "C=3")}, {"CLUSTERRUN_ENV": "A=1"})

    assert command.variables["CLUSTERRUN_ENV"] == "A=1\nB=2\nC=3"
    assert not any("B=2" in word for word in command.argv)


def test_env_value_with_line_break_is_refused() -> None:
    """CLUSTERRUN_ENV has one setting per line."""
    with pytest.raises(UsageError, match="A contains a line break") as error:
        commands_for({"hosts": "a", "env": ("A=1\n2",)}, {})

    assert "job file" in error.value.hint


def test_new_token_for_each_job() -> None:
    """All hosts of a job have the same token."""
    first, second = (commands_for({"hosts": "a,b"}, {}) for _ in range(2))

    tokens = [
        [command.variables["CLUSTERRUN_TOKEN"] for command in commands]
        for commands in (first, second)
    ]
    assert tokens[0][0] == tokens[0][1] != tokens[1][0]
    assert len(tokens[0][0]) == 64


def test_token_file_is_read_by_client(tmp_path: Path) -> None:
    """The file need not exist on the hosts."""
    file = tmp_path / "token"
    file.write_text("a secret of mine\n")
    file.chmod(stat.S_IRUSR)

    (command,) = commands_for({"hosts": "a", "token_file": str(file)}, {})

    assert command.variables["CLUSTERRUN_TOKEN"] == file.read_text().strip()
    assert not any("token" in word for word in command.argv)


def test_slots_in_hostfile_unless_nproc_per_node_is_set(tmp_path: Path) -> None:
    """It may also be set by a variable."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb\n")

    from_file = commands_for({"hostfile": str(file)}, {})
    from_option = commands_for({"hostfile": str(file)}, {"CLUSTERRUN_NPROC_PER_NODE": "4"})

    options = [parsed(command.argv)[0] for command in from_file]
    assert [each.get("nproc_per_node") for each in options] == ["2", None]
    assert options[0]["hosts"] == "a,b"
    assert not any("nproc" in word for command in from_option for word in command.argv)


def test_slots_count_gpus_of_all_programs(tmp_path: Path) -> None:
    """In a job with services, the main program has those that are left."""
    (tmp_path / "hosts").write_text("a slots=8\n")
    (tmp_path / "job.yaml").write_text("script: train.py\nservices: {server: {command: serve}}\n")
    options = {"hostfile": str(tmp_path / "hosts"), "config": str(tmp_path / "job.yaml")}

    (command,) = commands_for(options, {})

    assert "nproc_per_node" not in parsed(command.argv)[0]


def test_variable_that_is_not_utf_8() -> None:
    (command,) = commands_for({"hosts": "a"}, {"ODD": "\udce9\u00e9"})

    length, _, body = command.request("0f").partition(b"\n")
    assert json.loads(body)["variables"]["ODD"] == "\udce9\u00e9"
    assert length == b"0f %d" % len(body)
