"""Options by their names in Python."""

from pathlib import Path

import pytest
from clusterrun.clients.python.call import options_from_keywords

from tests.command_lines import flags_of


@pytest.mark.parametrize(
    ("keywords", "flags"),
    [
        ({"nproc_per_node": 4, "nnodes": None, "verbose": False}, {"nproc_per_node": "4"}),
        ({"nproc_per_node": "gpu"}, {"nproc_per_node": "gpu"}),
        ({"verbose": True}, {"verbose": True}),
        ({"shutdown_timeout": 2.5}, {"shutdown_timeout": "2.5"}),
        ({"log_dir": Path("/logs")}, {"log_dir": "/logs"}),
        ({"devices": [0, 3], "hosts": ("a", "b")}, {"devices": "0,3", "hosts": "a,b"}),
        ({"env": {"A": "1", "B": 2}}, {"env": ("A=1", "B=2")}),
        ({"preload": []}, {"preload": "none"}),
        ({"log_dir": b"/logs"}, {"log_dir": "/logs"}),
        ({"env": ["A=1"]}, {"env": ("A=1",)}),
        ({"max_restarts": 0}, {"max_restarts": "0"}),
    ],
)
def test_keywords_become_flags(keywords: dict[str, object], flags: dict[str, object]) -> None:
    options = options_from_keywords("launch", keywords)

    assert flags_of(options) == flags
    assert {text.origin for texts in options.values() for text in texts} <= keywords.keys()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nproc_per_nod": 2}, "launch.. got an unexpected keyword argument 'nproc_per_nod'"),
        ({"nproc_per_nod": 2}, "did you mean nproc_per_node?"),
        ({"module": "x"}, "launch.. takes no module: its function is the program"),
        ({"dry_run": True}, "to see a plan, use clusterrun --dry-run"),
        ({"pdb": True}, "launch.. takes no pdb: use clusterrun --pdb with a script"),
        ({"env": {"A": None}}, "A is None: remove it, or pass a string"),
        ({"verbose": "yes"}, "verbose must be True or False, not 'yes'"),
    ],
)
def test_invalid_keyword_is_type_error(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        options_from_keywords("launch", keywords)
