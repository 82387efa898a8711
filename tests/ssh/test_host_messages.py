"""What each host is sent of a job."""

import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.command_lines import FlagValue, command_line, flags_of
from tests.ssh.door import (
    FrameReader,
    HostJob,
    UsageError,
    messages,
    resolve,
    this_process,
)

PROGRAM = ("true",)


def jobs(flags: Mapping[str, FlagValue], environ: Mapping[str, str]) -> list[HostJob]:
    """Return what the hosts are sent for a command line."""
    line = command_line({"launcher": "ssh", "no_python": True, **flags}, *PROGRAM)
    variables = {"PATH": "/usr/bin:/bin", **environ}
    resolved = resolve(line, variables, this_process("clusterrun"))
    assert resolved.over_ssh is not None
    sent = messages(resolved, resolved.over_ssh, line, variables)
    frames = [frame for each in sent for frame in FrameReader().feed(each)]
    return [msgspec.json.decode(frame.content, type=HostJob) for frame in frames]


def test_each_host_has_its_rank_and_starts_no_other() -> None:
    """The list is written out; options of ssh stay here."""
    sent = jobs({"hosts": "n[2,1,7]", "ssh_options": "-p 5", "max_restarts": "1"}, {})

    assert [flags_of(job.line.options) for job in sent] == [
        {
            "launcher": "none",
            "no_python": True,
            "max_restarts": "1",
            "hosts": "n2,n1,n7",
            "node_rank": str(rank),
        }
        for rank in range(3)
    ]
    assert {job.words for job in sent} == {PROGRAM}
    assert {job.path for job in sent} == {str(Path.cwd())}


def test_env_is_a_variable() -> None:
    """It is added to the one that is set; no command line on a host has it."""
    (sent,) = jobs({"hosts": "a", "env": ("B=2", "C=3")}, {"CLUSTERRUN_ENV": "A=1"})

    assert sent.on_top_of({})["CLUSTERRUN_ENV"] == "A=1\nB=2\nC=3"
    assert "env" not in sent.options


def test_a_value_that_no_variable_can_have() -> None:
    """A variable has a setting on each line."""
    with pytest.raises(UsageError, match="A has a line break") as error:
        jobs({"hosts": "a", "env": ("A=1\n2",)}, {})

    assert "job file" in error.value.hint


def test_a_token_is_made_for_the_job() -> None:
    """All hosts have the same one, and the next job another one."""
    first, second = (jobs({"hosts": "a,b"}, {}) for _ in range(2))

    tokens = [[job.on_top_of({})["CLUSTERRUN_TOKEN"] for job in sent] for sent in (first, second)]
    assert tokens[0][0] == tokens[0][1] != tokens[1][0]
    assert len(tokens[0][0]) == 64


def test_the_users_own_token(tmp_path: Path) -> None:
    """Its file is read here, and need not be on the hosts."""
    file = tmp_path / "token"
    file.write_text("a secret of mine\n")
    file.chmod(stat.S_IRUSR)

    (sent,) = jobs({"hosts": "a", "token_file": str(file)}, {})

    assert sent.on_top_of({}).get("CLUSTERRUN_TOKEN") == file.read_text().strip()
    assert "token_file" not in sent.options


def test_slots_and_options(tmp_path: Path) -> None:
    """An option for the number of workers replaces the file's numbers, also as a variable."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb\n")

    by_file = jobs({"hostfile": str(file)}, {})
    by_option = jobs({"hostfile": str(file)}, {"CLUSTERRUN_NPROC_PER_NODE": "4"})

    assert [flags_of(job.line.options).get("nproc_per_node") for job in by_file] == ["2", None]
    assert [flags_of(job.line.options).get("nproc_per_node") for job in by_option] == [None, None]
    assert flags_of(by_file[0].line.options)["hosts"] == "a,b"


def test_texts_that_are_not_utf_8() -> None:
    """A variable may have any bytes."""
    (sent,) = jobs({"hosts": "a"}, {"ODD": "\udce9\u00e9"})

    assert sent.on_top_of({"ODD": "own", "HOME": "/h"}) | {"PATH": ""} == {
        "ODD": "\udce9\u00e9",
        "HOME": "/h",
        "PATH": "",
        "CLUSTERRUN_TOKEN": sent.on_top_of({})["CLUSTERRUN_TOKEN"],
    }
