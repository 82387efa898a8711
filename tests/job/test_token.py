"""The secret: where it may come from, and that it goes no further."""

import os
from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from msgspec.structs import replace

from tests.captured import captured
from tests.described import PROCESS, describe, mistake

FIRST, MINE = "first secret of ours", "a secret of my own"

MAKE_ONE = "create a secret:\n  (umask 077; openssl rand -hex 32 > secret)"

pytestmark = pytest.mark.usefixtures("script")


@pytest.fixture(autouse=True)
def files() -> None:
    """Write two files with secrets, as ``openssl rand -hex`` ends them."""
    for name, text in (("one", f"{FIRST}\n"), ("two", "second secret of ours\n")):
        Path(name).write_text(text)
        Path(name).chmod(0o600)


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, Setting(None, "default")),
        ({"token_file": "one"}, {}, Setting(FIRST, "--token-file")),
        ({}, {"CLUSTERRUN_TOKEN_FILE": "one"}, Setting(FIRST, "CLUSTERRUN_TOKEN_FILE")),
        ({}, {"CLUSTERRUN_TOKEN": MINE}, Setting(MINE, "CLUSTERRUN_TOKEN")),
        ({"token_file": "one"}, {"CLUSTERRUN_TOKEN": MINE}, Setting(FIRST, "--token-file")),
        (
            {},
            {"CLUSTERRUN_TOKEN": MINE, "CLUSTERRUN_TOKEN_FILE": "two"},
            Setting(MINE, "CLUSTERRUN_TOKEN"),
        ),
        ({}, {"CLUSTERRUN_TOKEN": f" {MINE}\n"}, Setting(MINE, "CLUSTERRUN_TOKEN")),
        ({"token_file": "one"}, {"CLUSTERRUN_TOKEN": ""}, Setting(FIRST, "--token-file")),
    ],
)
def test_sources(
    flags: dict[str, str], environ: dict[str, str], expected: Setting[str | None]
) -> None:
    """The flag, the variable, then other ways to name a file."""
    assert describe("train.py", flags=flags, environ=environ).job.setting("token") == expected


def test_workers_do_not_inherit_it() -> None:
    """What they print or send away of their environment is out of our hands."""
    resolved = describe("train.py", environ={"CLUSTERRUN_TOKEN": MINE})

    assert resolved.unset == ("CLUSTERRUN_TOKEN",)
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (None, "--token-file: secret can't be read: No such file or directory", ""),
        (b"\n", "--token-file: secret is empty", MAKE_ONE),
        (b"\xff\xfe", "--token-file: secret is not UTF-8 text", MAKE_ONE),
        (
            b"15 characters..\n",
            "--token-file: secret is shorter than 16 characters, and could be guessed",
            MAKE_ONE,
        ),
    ],
)
def test_files_without_a_secret(content: bytes | None, message: str, hint: str) -> None:
    """An empty secret would be none."""
    if content is not None:
        Path("secret").write_bytes(content)
        Path("secret").chmod(0o600)

    assert mistake("train.py", flags={"token_file": "secret"}) == (message, hint)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "CLUSTERRUN_TOKEN is empty"),
        (" \n", "CLUSTERRUN_TOKEN is empty"),
        ("\udcff", "CLUSTERRUN_TOKEN is not UTF-8 text"),
    ],
)
def test_a_variable_without_a_secret(value: str, message: str) -> None:
    """Whoever sets it wants nodes to be asked for one: ``CLUSTERRUN_TOKEN=$(cat missing)``."""
    hint = "set it to the same secret on all nodes, or unset it:\n  unset CLUSTERRUN_TOKEN"

    assert mistake("train.py", environ={"CLUSTERRUN_TOKEN": value}) == (message, hint)


def test_a_short_secret_in_a_variable() -> None:
    """The line that makes one is beside it."""
    message, hint = mistake("train.py", environ={"CLUSTERRUN_TOKEN": "15 characters.."})

    assert message == "CLUSTERRUN_TOKEN has fewer than 16 characters: it could be guessed"
    assert "\n  (umask 077; openssl rand -hex 32 > token)\n" in hint


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_a_file_that_is_open_to_all_holds_no_secret(mode: int) -> None:
    """As ssh has it of its keys."""
    Path("one").chmod(mode)

    assert mistake("train.py", flags={"token_file": "one"}) == (
        f"--token-file: one holds a secret, but is open to all users (mode {mode:o})",
        (
            "close it to others:\n  chmod o-rwx one\n"
            "or, if it is a mounted Kubernetes secret, set its volume's defaultMode: 0400"
        ),
    )


def test_the_mode_is_that_of_the_file_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may have taken its name when that is looked up once more."""
    Path("one").chmod(0o644)
    other, ask = Path("two").stat(), os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **how: other if str(path) == "one" else ask(path, **how)
    )

    message, _ = mistake("train.py", flags={"token_file": "one"})

    assert message.endswith("is open to all users (mode 644)")


@pytest.mark.parametrize("mode", [0o400, 0o640])
def test_a_file_may_be_open_to_a_group(mode: int) -> None:
    """Kubernetes gives a pod's secrets to one."""
    Path("one").chmod(mode)

    resolved = describe("train.py", flags={"token_file": "one"})

    assert resolved.job.token == FIRST
    warning = (
        "--token-file: one holds a secret, and is open to its group (mode 640); to close it: chmod"
        " g-rwx one"
    )
    assert resolved.warnings == ((warning,) if mode == 0o640 else ())


def test_a_mounted_secret_may_be_open_to_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can write there, and its user cannot change its mode."""
    Path("one").chmod(0o640)
    mounted = os.statvfs_result((*os.statvfs(".")[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)

    assert describe("train.py", flags={"token_file": "one"}).warnings == ()


def test_a_secret_may_come_out_of_a_pipe() -> None:
    """``--token-file <(pass show job)``: there it has no mode that counts."""
    ours, theirs = os.pipe()
    with os.fdopen(ours), os.fdopen(theirs, "w") as end:
        end.write(f"{FIRST}\n")
        end.close()
        flags = {"token_file": f"/dev/fd/{ours}"}

        assert describe("train.py", flags=flags).job.token == FIRST


def test_a_schedulers_job_has_a_token_of_its_user() -> None:
    """The id of the user is part of it."""
    process = replace(PROCESS, user_id=7)

    token = describe("train.py", environ=captured("node.0"), process=process).job.setting("token")

    assert token == Setting("26.0 of user 7", "SLURM_JOB_ID, SLURM_STEP_ID")


def test_a_token_is_not_a_key_of_a_job_file() -> None:
    """Job files are shared and kept."""
    Path("job.yaml").write_text("token: mine\n")

    assert mistake("train.py", flags={"config": "job.yaml"}) == (
        "job.yaml:1 token: there is no such key",
        "did you mean token_file?",
    )
