"""The secret: where it may come from, and that it goes no further."""

from pathlib import Path

import pytest

from launcher.domain.facts import Fact
from tests.described import describe, mistake

pytestmark = pytest.mark.usefixtures("script")


@pytest.fixture(autouse=True)
def files() -> None:
    """Write two files with secrets, as ``openssl rand -hex`` ends them."""
    Path("one").write_text("first\n")
    Path("two").write_text("second\n")


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, Fact(None, "default")),
        ({"token_file": "one"}, {}, Fact("first", "--token-file")),
        ({}, {"CLUSTERRUN_TOKEN_FILE": "one"}, Fact("first", "CLUSTERRUN_TOKEN_FILE")),
        ({}, {"CLUSTERRUN_TOKEN": "mine"}, Fact("mine", "CLUSTERRUN_TOKEN")),
        ({"token_file": "one"}, {"CLUSTERRUN_TOKEN": "mine"}, Fact("first", "--token-file")),
        (
            {},
            {"CLUSTERRUN_TOKEN": "mine", "CLUSTERRUN_TOKEN_FILE": "two"},
            Fact("mine", "CLUSTERRUN_TOKEN"),
        ),
        ({}, {"CLUSTERRUN_TOKEN": ""}, Fact(None, "default")),
    ],
)
def test_sources(
    flags: dict[str, str], environ: dict[str, str], expected: Fact[str | None]
) -> None:
    """The flag, the variable, then other ways to name a file."""
    assert describe("train.py", flags=flags, environ=environ).job.token == expected


def test_workers_do_not_inherit_it() -> None:
    """What they print or send away of their environment is out of our hands."""
    resolved = describe("train.py", environ={"CLUSTERRUN_TOKEN": "mine"})

    assert resolved.unset == ("CLUSTERRUN_TOKEN",)
    assert resolved.warnings == ()


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (None, "--token-file: secret cannot be read: No such file or directory", ""),
        (b"\n", "--token-file: secret is empty", "make one:\n  openssl rand -hex 32 > secret"),
        (
            b"\xff\xfe",
            "--token-file: secret is not a text",
            "make one:\n  openssl rand -hex 32 > secret",
        ),
    ],
)
def test_files_without_a_secret(content: bytes | None, message: str, hint: str) -> None:
    """An empty secret would be none."""
    if content is not None:
        Path("secret").write_bytes(content)

    assert mistake("train.py", flags={"token_file": "secret"}) == (message, hint)


def test_a_token_is_no_key_of_a_job_file() -> None:
    """Job files are shared and kept."""
    Path("job.yaml").write_text("token: mine\n")

    assert mistake("train.py", flags={"config": "job.yaml"}) == (
        "job.yaml:1 token: there is no such key",
        "did you mean token_file?",
    )
