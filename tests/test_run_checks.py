"""scripts/run_checks.py: what it hides, what it says of tests that were left out, and when it fails."""

import os
from argparse import Namespace
from pathlib import Path
from shutil import which

import pytest
from run_checks import AT_LEAST, cases_in, conclude, hide, left_out

ALL = Namespace(hosts=True, long=True, wheel=True)
FIRST_TIER = Namespace(hosts=False, long=False, wheel=False)

CASE = '<testcase><properties><property name="kind" value="{kind}"/></properties>{end}</testcase>'


def report(folder: Path, *cases: str) -> None:
    (folder / "tests.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>")


def test_hidden_commands_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others beside them are, and a folder that has none of them stays as it is."""
    for name in ("bin/ssh", "bin/ls", "own/python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/own:{tmp_path}/bin")
    (tmp_path / "links").mkdir()

    hide(["ssh", "srun"], tmp_path / "links")

    assert which("ssh") is None
    assert os.path.realpath(which("ls") or "") == f"{tmp_path}/bin/ls"
    assert which("python") == f"{tmp_path}/own/python"


def test_tests_that_were_left_out_are_listed(tmp_path: Path) -> None:
    """By what they need, and by the options that ask for them."""
    skipped = [
        CASE.format(kind="rest", end=f'<skipped message="{why}"/>')
        for why in ("needs zsh", "needs zsh", "needs root", "no Python 3.8 here")
    ]
    report(tmp_path, CASE.format(kind="rest", end=""), *skipped)

    assert list(left_out(cases_in(tmp_path), ALL)) == ["1 that needs root", "2 that need zsh"]
    assert list(left_out(cases_in(tmp_path), FIRST_TIER))[2:] == [
        "those of several hosts (--hosts)",
        "long ones (--long)",
        "those of the wheel (--wheel)",
    ]


@pytest.mark.parametrize("lacking", [None, *AT_LEAST])
def test_a_kind_of_which_too_few_ran_is_a_failure(
    lacking: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of tests that is not found must not pass; those that were skipped were found."""
    monkeypatch.delenv("CI", raising=False)
    skipped = '<skipped message="needs root"/>'
    kinds = [kind for kind, count in AT_LEAST.items() for _ in range(count - (kind == lacking))]
    report(tmp_path, *(CASE.format(kind=kind, end=skipped) for kind in kinds))

    assert conclude([], tmp_path, FIRST_TIER) == (0 if lacking is None else 1)
