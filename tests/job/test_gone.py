"""Options of the last release that are gone: wherever one is set, the answer says what to type."""

from pathlib import Path

import pytest
from clusterrun.cli.splitting import split
from clusterrun.clients.python.call import options_from_keywords
from clusterrun.errors import UsageError
from clusterrun.job.options import NAMES as NAMES_OF_OPTIONS
from clusterrun.job.removed_options import REMOVED_OPTIONS

from tests.described import describe

NAMES = sorted(REMOVED_OPTIONS)


def test_none_is_there_and_gone() -> None:
    assert not REMOVED_OPTIONS.keys() & NAMES_OF_OPTIONS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_typed(name: str) -> None:
    """With - or _, with a value or without."""
    flag = f"--{name.replace('_', '-')}"
    for word in (flag, f"--{name}", f"{flag}=1"):
        with pytest.raises(UsageError) as caught:
            split([word, "train.py"])
        typed = word.partition("=")[0]
        assert caught.value.message == f"there is no option {typed} any more"
        assert caught.value.hint == REMOVED_OPTIONS[name]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("name", NAMES)
def test_set_elsewhere(name: str) -> None:
    """A variable is a warning, as each that is not read is; a key and a keyword are errors."""
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
