"""Options of clusterrun 0.1 that were removed: the error or warning says what to use instead."""

from pathlib import Path

import pytest
from clusterrun.cli.splitting import split
from clusterrun.clients.python.call import options_from_keywords
from clusterrun.errors import UsageError
from clusterrun.job.options import NAMES as NAMES_OF_OPTIONS
from clusterrun.job.removed_options import REMOVED_OPTIONS

from tests.described import describe

NAMES = sorted(REMOVED_OPTIONS)


def test_removed_options_do_not_exist() -> None:
    assert not REMOVED_OPTIONS.keys() & NAMES_OF_OPTIONS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_removed_flag_is_an_error(name: str) -> None:
    """With - or _, with or without a value."""
    flag = f"--{name.replace('_', '-')}"
    for word in (flag, f"--{name}", f"{flag}=1"):
        with pytest.raises(UsageError) as caught:
            split([word, "train.py"])
        typed = word.partition("=")[0]
        assert caught.value.message == f"there is no option {typed} any more"
        assert caught.value.hint == REMOVED_OPTIONS[name]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("name", NAMES)
def test_removed_variable_key_and_keyword(name: str) -> None:
    """A variable causes a warning; a key of a job file and a keyword are errors."""
    variable = f"CLUSTERRUN_{name.upper()}"
    assert f"{variable} is not read any more; {REMOVED_OPTIONS[name]}" in (
        describe("train.py", environ={variable: "1"}).warnings
    )
    Path("job.yaml").write_text(f"script: train.py\n{name}: 1\n")
    with pytest.raises(UsageError) as caught:
        describe(flags={"config": "job.yaml"})
    assert caught.value.message == f"job.yaml:2 {name}: there is no such key any more"
    with pytest.raises(TypeError, match=r"launch.. takes no .* any more; "):
        options_from_keywords("launch", {name: 1})
