"""What each host's agent is called with."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.cli.splitting import split
from clusterrun.clients.ssh.remote import Call, calls
from clusterrun.errors import UsageError
from clusterrun.job.resolve import resolve
from clusterrun.job.this_process import this_process

from tests.command_lines import FlagValue, command_line, flags_of

PROGRAM = ("true",)


def called(flags: Mapping[str, FlagValue], environ: Mapping[str, str]) -> list[Call]:
    """Return what the hosts are sent for a command line."""
    line = command_line({"launcher": "ssh", "no_python": True, **flags}, *PROGRAM)
    variables = {"PATH": "/usr/bin:/bin", **environ}
    resolved = resolve(line, variables, this_process("clusterrun"))
    assert resolved.over_ssh is not None
    return list(calls(resolved, resolved.over_ssh, line, variables))


def command(typed: list[str]) -> tuple[Mapping[str, FlagValue], tuple[str, ...]]:
    """Return the options and the program of these words, as an agent reads them."""
    line = split(typed, "clusterrun")
    return flags_of(line.options), line.words


def test_each_host_has_its_rank_and_starts_no_other() -> None:
    """The list is written out; options of ssh stay here."""
    sent = called({"hosts": "n[2,1,7]", "ssh_options": "-p 5", "max_restarts": "1"}, {})

    for rank, call in enumerate(sent):
        options, program = command(call.argv)
        assert options == {
            "launcher": "none",
            "no_python": True,
            "max_restarts": "1",
            "hosts": "n2,n1,n7",
            "node_rank": str(rank),
        }
        assert program == PROGRAM
        assert call.folder == str(Path.cwd())


def test_env_is_a_variable() -> None:
    """It is added to the one that is set; no command line on a host has it."""
    (sent,) = called({"hosts": "a", "env": ("B=2", "C=3")}, {"CLUSTERRUN_ENV": "A=1"})

    assert sent.variables["CLUSTERRUN_ENV"] == "A=1\nB=2\nC=3"
    assert not any("B=2" in word for word in sent.argv)


def test_a_value_that_no_variable_can_have() -> None:
    """A variable has a setting on each line."""
    with pytest.raises(UsageError, match="A contains a line break") as error:
        called({"hosts": "a", "env": ("A=1\n2",)}, {})

    assert "job file" in error.value.hint


def test_a_token_is_made_for_the_job() -> None:
    """All hosts have the same one, and the next job another one."""
    first, second = (called({"hosts": "a,b"}, {}) for _ in range(2))

    tokens = [[call.variables["CLUSTERRUN_TOKEN"] for call in sent] for sent in (first, second)]
    assert tokens[0][0] == tokens[0][1] != tokens[1][0]
    assert len(tokens[0][0]) == 64


def test_the_users_own_token(tmp_path: Path) -> None:
    """Its file is read here, and need not be on the hosts."""
    file = tmp_path / "token"
    file.write_text("a secret of mine\n")
    file.chmod(stat.S_IRUSR)

    (sent,) = called({"hosts": "a", "token_file": str(file)}, {})

    assert sent.variables["CLUSTERRUN_TOKEN"] == file.read_text().strip()
    assert not any("token" in word for word in sent.argv)


def test_slots_and_options(tmp_path: Path) -> None:
    """An option for the number of workers replaces the file's numbers, also as a variable."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb\n")

    by_file = called({"hostfile": str(file)}, {})
    by_option = called({"hostfile": str(file)}, {"CLUSTERRUN_NPROC_PER_NODE": "4"})

    options = [command(call.argv)[0] for call in by_file]
    assert [each.get("nproc_per_node") for each in options] == ["2", None]
    assert options[0]["hosts"] == "a,b"
    assert not any("nproc" in word for call in by_option for word in call.argv)


def test_texts_that_are_not_utf_8() -> None:
    """A variable may have any bytes."""
    (sent,) = called({"hosts": "a"}, {"ODD": "\udce9\u00e9"})

    length, _, body = sent.message("0f").partition(b"\n")
    assert json.loads(body)["variables"]["ODD"] == "\udce9\u00e9"
    assert length == b"0f %d" % len(body)
