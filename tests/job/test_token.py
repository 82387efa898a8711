"""The sources of the token, and errors about unsafe ones."""

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
    """Write two files with secrets, which end with a line break as those of openssl do."""
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
def test_token_sources(
    flags: dict[str, str], environ: dict[str, str], expected: Setting[str | None]
) -> None:
    """--token-file > CLUSTERRUN_TOKEN > other sources of a file."""
    assert describe("train.py", flags=flags, environ=environ).job.setting("token") == expected


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
def test_unusable_file_is_an_error(content: bytes | None, message: str, hint: str) -> None:
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
def test_unusable_variable_is_an_error(value: str, message: str) -> None:
    """An empty variable often means a failed command: ``CLUSTERRUN_TOKEN=$(cat missing)``."""
    hint = "set it to the same secret on all nodes, or unset it:\n  unset CLUSTERRUN_TOKEN"

    assert mistake("train.py", environ={"CLUSTERRUN_TOKEN": value}) == (message, hint)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_file_open_to_all_users_is_an_error(mode: int) -> None:
    """Ssh does the same with keys."""
    Path("one").chmod(mode)

    assert mistake("train.py", flags={"token_file": "one"}) == (
        f"--token-file: one holds a secret, but is open to all users (mode {mode:o})",
        (
            "close it to others:\n  chmod o-rwx one\n"
            "or, if it is a mounted Kubernetes secret, set its volume's defaultMode: 0400"
        ),
    )


def test_mode_is_read_from_the_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may have the same path a moment later."""
    Path("one").chmod(0o644)
    other, ask = Path("two").stat(), os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **how: other if str(path) == "one" else ask(path, **how)
    )

    message, _ = mistake("train.py", flags={"token_file": "one"})

    assert message.endswith("is open to all users (mode 644)")


@pytest.mark.parametrize("mode", [0o400, 0o640])
def test_file_open_to_a_group_has_a_warning(mode: int) -> None:
    Path("one").chmod(mode)

    resolved = describe("train.py", flags={"token_file": "one"})

    assert resolved.job.token == FIRST
    warning = (
        "--token-file: one holds a secret, and is open to its group (mode 640); to close it: chmod"
        " g-rwx one"
    )
    assert resolved.warnings == ((warning,) if mode == 0o640 else ())


def test_mounted_file_open_to_a_group_has_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only mount is safe, and the user cannot change its mode."""
    Path("one").chmod(0o640)
    mounted = os.statvfs_result((*os.statvfs(".")[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)

    assert describe("train.py", flags={"token_file": "one"}).warnings == ()


def test_token_from_a_pipe() -> None:
    """``--token-file <(pass show job)``: the mode of a pipe is not checked."""
    ours, theirs = os.pipe()
    with os.fdopen(ours), os.fdopen(theirs, "w") as end:
        end.write(f"{FIRST}\n")
        end.close()
        flags = {"token_file": f"/dev/fd/{ours}"}

        assert describe("train.py", flags=flags).job.token == FIRST


def test_default_token_has_the_user_id() -> None:
    process = replace(PROCESS, user_id=7)

    token = describe("train.py", environ=captured("node.0"), process=process).job.setting("token")

    assert token == Setting("26.0 of user 7", "SLURM_JOB_ID, SLURM_STEP_ID")
