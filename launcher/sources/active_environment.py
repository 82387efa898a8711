"""A virtual environment that is active, and is not the one that clusterrun is installed in."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.domain.facts import Fact
from launcher.sources.files import is_executable

VARIABLE = "VIRTUAL_ENV"
"""What a virtual environment's ``activate`` sets."""


def another_is_active(python: Fact[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if workers run on clusterrun's ``python`` and not on the active one's."""
    active = variables.get(VARIABLE, "")
    its_python = f"{active}/bin/python"
    if not active or python.origin != "default" or not is_executable(its_python):
        return
    # bin/python is a link: the folder tells environments apart, not what it leads to.
    if Path(python.value).parent.parent.resolve() != Path(active).resolve():
        yield (
            f"workers run on {python.value}, where clusterrun is installed; the active environment"
            f" ({VARIABLE}) is {active}: --python {its_python} uses it"
        )
