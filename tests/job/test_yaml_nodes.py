"""Values of YAML are read as text, and errors have file and line."""

from pathlib import Path

import pytest
import yaml
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import read_entries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

YAML_1_1_VALUES = [
    "010",
    "0x1F",
    "0b11",
    "1_000",
    "1:30:00",
    "1e3",
    ".5",
    ".inf",
    "no",
    "Yes",
    "on",
    "off",
    "y",
    "null",
    "~",
    "2024-01-31",
    "3.10",
    "+12",
    "=",
    "<<",
]

LONE_SURROGATE = r"contains a lone surrogate, an escape from \uD800 to \uDFFF"


def read(text: str | bytes) -> dict[str, str]:
    """Return the text of each entry of a file job.yaml by key."""
    Path("job.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return {
        key: entry.text() for key, entry in read_entries(Setting("job.yaml", "--config")).items()
    }


def mistake(text: str | bytes) -> tuple[str, str]:
    """Return the message and hint for a wrong file."""
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize("text", YAML_1_1_VALUES)
def test_scalars_are_read_as_text(text: str) -> None:
    """No value becomes a number, a boolean, a date or a sexagesimal number."""
    assert read(f"key: {text}\n") == {"key": text}


@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.isprintable)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_quoted_text_is_unchanged(text: str) -> None:
    quoted = text.replace("'", "''")

    assert read(f"key: '{quoted}'\n") == {"key": text}


@given(text=st.from_regex(r"[A-Za-z0-9_.:+~-]*[A-Za-z0-9_.+]", fullmatch=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_plain_word_is_unchanged(text: str) -> None:
    """Whatever YAML 1.1 makes of the word; words that are not YAML are skipped."""
    try:
        found = yaml.compose(f"key: {text}", Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        found = None

    if isinstance(found, yaml.MappingNode) and isinstance(found.value[0][1], yaml.ScalarNode):
        assert read(f"key: {text}\n") == {"key": text}


def test_origin_has_the_line() -> None:
    """Comments and empty lines count; a byte order mark is ignored."""
    Path("job.yaml").write_bytes(b"\xef\xbb\xbf# jobs\n\nkey: 1\n")

    entries = read_entries(Setting("job.yaml", "--config"))

    assert entries["key"].origin == "job.yaml:3 key"


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("# nnodes: 1\n", {}),
        # JSON, which is also YAML, writes characters beyond U+FFFF as surrogate pairs.
        ('{"key": "\\ud83d\\ude00"}', {"key": "\U0001f600"}),
        ("one: &same 7\nother: *same\n", {"one": "7", "other": "7"}),
        # Tags, which could run code, are ignored.
        ("a: !!python/name:os.system x\n", {"a": "x"}),
    ],
    ids=["comment", "surrogate pair", "alias", "tag"],
)
def test_entries(text: str, entries: dict[str, str]) -> None:
    assert read(text) == entries


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "- a\n",
            "job.yaml:1: a list, where lines of KEY: VALUE are expected",
            "write, for example,\n  script: train.py",
        ),
        (
            "a: {b: c}\n",
            "job.yaml:1 a: a mapping, where a single value is expected",
            "put quotes around it if it is meant as text",
        ),
        (
            "? [a]\n: 1\n",
            "job.yaml:1: a list, where a single value is expected",
            "put quotes around it if it is meant as text",
        ),
        ("a: b: c\n", "job.yaml:1: mapping values are not allowed here", ""),
        (
            "a: @b\n",
            "job.yaml:1: while scanning for the next token, found character '@' that cannot start any token",
            "",
        ),
        ("a: *b\n", "job.yaml:1: found undefined alias 'b'", ""),
        (
            "a: 1\n---\nb: 2\n",
            "job.yaml:2: expected a single document in the stream, but found another document",
            "",
        ),
        (
            "a: 1\nb: \x07\n",
            "job.yaml:2: character 0x07 is not allowed in a text file",
            "remove it, or write it as an escape in double quotes",
        ),
        ('a: "\\0"\n', "job.yaml:1 a: contains a NUL character", "remove it"),
        (
            'a: "\\ud800"\n',
            f"job.yaml:1 a: {LONE_SURROGATE}",
            "remove it, or write the character itself",
        ),
        (
            '"\\udfff": 1\n',
            f"job.yaml:1: {LONE_SURROGATE}",
            "remove it, or write the character itself",
        ),
        (
            'a: "\\ude00\\ud83d"\n',
            f"job.yaml:1 a: {LONE_SURROGATE}",
            "remove it, or write the character itself",
        ),
        ("[" * 1000, "job.yaml: nested too deeply for a job file", ""),
    ],
)
def test_errors_have_file_and_line(text: str | bytes, message: str, hint: str) -> None:
    assert mistake(text) == (message, hint)


def test_list_that_contains_itself_is_an_error() -> None:
    Path("job.yaml").write_text("args: &me [*me]\n")
    entries = read_entries(Setting("job.yaml", "--config"))

    with pytest.raises(UsageError, match="a list, where a single value is expected"):
        entries["args"].texts()
