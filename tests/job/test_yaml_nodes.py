"""Values of YAML are read as text."""

from pathlib import Path

import pytest
import yaml
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import read_entries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

YAML_1_1_VALUES = """
    010 0x1F 0b11 1_000 1:30:00 1e3 .5 .inf no Yes on off y null ~ 2024-01-31 3.10 +12 = <<
"""


def read(text: str) -> dict[str, str]:
    """Return the text of each entry of a file job.yaml by key."""
    Path("job.yaml").write_text(text)
    return {
        key: entry.text() for key, entry in read_entries(Setting("job.yaml", "--config")).items()
    }


@pytest.mark.parametrize("text", YAML_1_1_VALUES.split())
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
            "a: 1\nb: \x07\n",
            "job.yaml:2: character 0x07 is not allowed in a text file",
            "remove it, or write it as an escape in double quotes",
        ),
        ("[" * 1000, "job.yaml: nested too deeply for a job file", ""),
    ],
)
def test_errors_that_no_transcript_can_show(text: str, message: str, hint: str) -> None:
    """The others are in lines/job_files.txt."""
    with pytest.raises(UsageError) as caught:
        read(text)

    assert (caught.value.message, caught.value.hint) == (message, hint)
