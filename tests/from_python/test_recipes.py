"""Each program in docs/from_python.md runs."""

import json
import re
from pathlib import Path

import pytest
from free_ports import free_port

from tests.contract.launched import Ended, Launcher

PAGE = Path(__file__).parents[2] / "docs" / "from_python.md"

RECIPES = re.findall(r"## (.+?)\n|```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

NOTEBOOK = "Ranks that stay"
"""The blocks of this section are the cells of one notebook."""

SEVERAL_NODES = "Several nodes"
TEST_SUITE = "In a test suite"

PRINTED = {
    NOTEBOOK: ["[rank 0] 2", "[rank 1] 2", "[0.0, 0.0]", "[rank 0] rank 0 has 2 parameters"],
    "What stays between calls": ["[(0, 0.1), (1, 0.1)]"],
    "A collective that a rank left": ["rank 1: ValueError('bad batch')", "[2.0, 2.0]"],
    "One call": ["[10.5, 10.5]"],
    "Options": ["['sour', 'sour']"],
    "When a rank fails": ["ValueError('loss is nan')"],
    "A sweep": ["0.1"],
    "A sweep with Optuna": ["{'learning_rate': 0.", "loss is nan"],
    "In a notebook": ["[rank 0] loss on 2 ranks: 0.0", "True"],
    SEVERAL_NODES: ["[0, 1]"],
    "In place of torch.multiprocessing.spawn": ["[rank 1] rank 1 writes to /tmp"],
    "In asyncio": ["[rank 1] rank 1 trains"],
    TEST_SUITE: ["2 passed"],
    "Lightning": ["rank 0 of 2", "rank 1 of 2"],
}
"""A part of each program's output; a program without an entry fails the test."""

LONG = {
    NOTEBOOK,
    "A collective that a rank left",
    "A sweep with Optuna",
    "In a notebook",
    TEST_SUITE,
    "Lightning",
}
"""Programs that take some seconds."""

SECONDS_TO_RUN = 100.0


def programs() -> list[tuple[str, str]]:
    """Return each program with its heading; the notebook as JSON."""
    heading, found = "", []
    for title, program in RECIPES:
        heading = title or heading
        found += [(heading, program)] if program and heading != NOTEBOOK else []
    return [(NOTEBOOK, json.dumps(notebook())), *found]


def notebook() -> dict[str, object]:
    """Return the blocks of the first section as a notebook."""
    section = PAGE.read_text().partition(f"## {NOTEBOOK}\n")[2].partition("\n##")[0]
    cells = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    fields: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    made = [{**fields, "id": f"cell-{number}", "source": each} for number, each in enumerate(cells)]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


each_program = pytest.mark.parametrize(
    ("heading", "program"),
    [
        pytest.param(*recipe, marks=pytest.mark.long if recipe[0] in LONG else ())
        for recipe in programs()
    ],
)


def test_page_has_ten_recipes() -> None:
    assert len(programs()) >= 10
    assert {heading for heading, _ in programs()} == PRINTED.keys()


@each_program
def test_recipe_runs(caller: Launcher, heading: str, program: str) -> None:
    ended = run(caller, heading, program)

    printed = ended.out + ended.err
    assert ended.code == 0, printed
    assert [line for line in PRINTED[heading] if line not in printed] == [], printed


def run(caller: Launcher, heading: str, program: str) -> Ended:
    if heading == NOTEBOOK:
        (caller.folder / "page.ipynb").write_text(program)
        (caller.folder / "ipython").mkdir()
        words = ("-m", "IPython", "--ipython-dir=ipython", "--colors=NoColor", "page.ipynb")
        return caller.command(*words).ended(SECONDS_TO_RUN)
    if heading == TEST_SUITE:
        (caller.folder / "test_sum.py").write_text(program)
        return caller.command("-m", "pytest", "-p", "no:cacheprovider").ended(SECONDS_TO_RUN)
    return caller.script(program).ended(SECONDS_TO_RUN)


def test_recipe_of_several_nodes_runs_on_two(caller: Launcher) -> None:
    """Both nodes are this machine."""
    program = dict(programs())[SEVERAL_NODES]
    port = {"CLUSTERRUN_MASTER_PORT": f"{free_port()}"}
    nodes = [caller.script(program, args=(f"{node}", "2"), environ=port) for node in range(2)]

    ended = [node.ended(SECONDS_TO_RUN) for node in nodes]

    assert [(each.code, each.out) for each in ended] == [(0, "[0, 1]\n"), (0, "[2, 3]\n")], ended
