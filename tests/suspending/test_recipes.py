"""Each program in docs/suspend.md resumes where it was."""

import re
import signal
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

PAGE = Path(__file__).parents[2] / "docs" / "suspend.md"

RECIPES = dict(re.findall(r"### (\S+)\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL))

PLAIN = "torch.distributed.checkpoint"

ASYNC = "the same, in the background"

PROGRAMS = {
    **RECIPES,
    ASYNC: re.sub(r"dcp\.save\((.*)\)", r"dcp.async_save(\1).result()", RECIPES[PLAIN]),
}

SECONDS = 90.0


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PROGRAMS)
def test_recipes_resume(clusterrun: Launcher, name: str) -> None:
    """Suspended twice, it ends with the sum of weights of a run that never was."""
    program = PROGRAMS[name]
    (clusterrun.folder / "undisturbed").mkdir()
    moved = f"import os\nos.chdir('undisturbed')\n{program}"

    whole = clusterrun.script(moved, workers=2).ended(SECONDS)
    codes = []
    for lines in (2, 4):
        job = clusterrun.script(program, workers=2)
        job.wait_for(r"step \d+\n", times=lines)
        job.signal(signal.SIGTERM)
        codes.append(job.ended(SECONDS).code)
    last = clusterrun.script(program, workers=2).ended(SECONDS)

    assert (whole.code, codes, last.code) == (0, [75, 75], 0), last.err
    assert weights(last.out) == weights(whole.out)


def weights(printed: str) -> set[str]:
    found = set(re.findall(r"weights (\S+)", printed))
    assert found, printed
    return found
