"""A site's own cluster, ``--cluster MODULE:FUNCTION``: the example of the docs, and errors."""

import re
from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting

from tests.described import describe, mistake

PAGE = Path(__file__).parents[3] / "docs/reference/clusters.md"
FLAGS = {"cluster": "nomad_of_docs:find"}
ALLOCATION = {
    "NOMAD_ALLOC_ID": "c2a1e3d4-3a5b-8a3f-1d1f-2f6f5ad0d4c7",
    "NOMAD_ALLOC_INDEX": "1",
    "NOMAD_GROUP_NAME": "node",
    "NOMAD_JOB_ID": "train",
    "NOMAD_JOB_NAME": "train",
    "NOMAD_META_NODES": "2",
}

pytestmark = pytest.mark.usefixtures("script", "site")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the module of the docs, and a module with errors, on sys.path."""
    [example] = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text())
    (tmp_path / "nomad_of_docs.py").write_text(example)
    (tmp_path / "wrong_site.py").write_text("def fails(*_): 1 / 0\ndef text(*_): return 'n0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_example_of_the_docs() -> None:
    """Every value has its variable as origin."""
    job = describe("train.py", flags=FLAGS, environ=ALLOCATION).job

    assert [
        job.setting(name) for name in ("nnodes", "node_rank", "master_addr", "run_id", "cluster")
    ] == [
        Setting(2, "NOMAD_META_NODES"),
        Setting(1, "NOMAD_ALLOC_INDEX"),
        Setting("train-0.service.consul", "NOMAD_JOB_NAME"),
        Setting("train", "NOMAD_JOB_ID"),
        Setting("nomad_of_docs:find", "--cluster"),
    ]


def test_example_with_a_wrong_variable() -> None:
    message, _ = mistake("train.py", flags=FLAGS, environ={**ALLOCATION, "NOMAD_META_NODES": "1"})

    assert message == "NOMAD_ALLOC_INDEX is 1, but must be less than NOMAD_META_NODES, which is 1"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nomad_of_docs:find", "which finds no job of its cluster on this host"),
        ("wrong_site:text", "which finds no job of its cluster on this host"),
        ("wrong_site:fails", "ZeroDivisionError: division by zero"),
        ("wrong_site:other", "AttributeError: module 'wrong_site' has no attribute 'other'"),
        ("no_site:find", "ModuleNotFoundError: No module named 'no_site'"),
        (":", "ValueError: Empty module name"),
    ],
)
def test_unusable_function_is_an_error(function: str, why: str) -> None:
    """The job must not run on one node instead."""
    message, hint = mistake("train.py", flags={"cluster": function})

    between = ", " if why.startswith("which") else ": "
    assert message == f"--cluster is {function}{between}{why}"
    assert ("remove --cluster" in hint) or ("PYTHONPATH" in hint)
