"""Options by their names in Python."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from clusterrun.cli.splitting import split
from clusterrun.clients.python.call import command_line, options_from_keywords

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
        (
            {"env": {"LR": 1.2345678e-4, "S": 12345678.0}},
            {"env": ("LR=0.00012345678", "S=12345678")},
        ),
        (
            {"rdzv_timeout": 123456.7, "rejoin_timeout": 600.0},
            {"rdzv_timeout": "123456.7", "rejoin_timeout": "600"},
        ),
        ({"ssh_options": ["-p", "22"]}, {"ssh_options": "-p 22"}),
        (
            {"suspend_hook": ["sh", "a b"], "check": ["a", "$X"]},
            {"suspend_hook": "sh 'a b'", "check": "a '$X'"},
        ),
        ({"ssh_options": "-p 22", "check": "a | b"}, {"ssh_options": "-p 22", "check": "a | b"}),
        ({"duplicate_stdout_filters": ["a,b", "c"]}, {"duplicate_stdout_filters": "a,,b,c"}),
        ({"redirects": {0: 3, 1: 2}, "tee": 3}, {"redirects": "0:3,1:2", "tee": "3"}),
        (
            {"rdzv_conf": {"timeout": 9}, "numa_map": {0: "node 1"}},
            {"rdzv_conf": "timeout=9", "numa_map": "0=node 1"},
        ),
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


@pytest.mark.parametrize(
    ("keywords", "environ", "expected"),
    [
        ({}, {}, (False, False)),
        ({"hosts": "a,b"}, {}, (True, False)),
        ({"launcher": "ssh"}, {"CLUSTERRUN_HOSTS": "a,b"}, (True, False)),
        ({}, {"CLUSTERRUN_LAUNCHER": "ssh", "CLUSTERRUN_HOSTS": "a,b"}, (True, False)),
        ({"launcher": "none"}, {"CLUSTERRUN_LAUNCHER": "ssh"}, (False, False)),
        ({"config": "job.yaml"}, {}, (True, True)),
        ({}, {"CLUSTERRUN_CONFIG": "job.yaml"}, (True, True)),
        ({"preload": "json"}, {}, (False, True)),
        ({}, {"CLUSTERRUN_PRELOAD": "none"}, (False, True)),
        ({}, {"PET_START_METHOD": "spawn"}, (False, True)),
        # The command has the error message.
        ({"config": "missing.yaml"}, {}, (False, False)),
        ({}, {"CLUSTERRUN_LAUNCHER": "nope"}, (False, False)),
        # In a worker of another job, its variables do not count.
        (
            {},
            {"CLUSTERRUN_LAUNCHER": "ssh", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "1"},
            (False, False),
        ),
    ],
)
def test_variables_and_job_file_count(
    keywords: dict[str, object],
    environ: dict[str, str],
    expected: tuple[bool, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may choose ssh, and what is preloaded; else the caller's modules are."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("launcher: ssh\nhosts: a,b\npreload: none\n")
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    for name, text in environ.items():
        monkeypatch.setenv(name, text)

    words, is_over_ssh = command_line("launch", keywords)

    is_preload_set = not any("numpy" in word for word in words)
    assert (is_over_ssh, is_preload_set) == expected


@pytest.mark.parametrize(
    "keywords", [{"hosts": "a,b", "ssh_options": "-p 22"}, {"ssh_options": "-v", "role": "-x"}]
)
def test_values_with_a_dash_are_read_back(keywords: dict[str, object]) -> None:
    words, _ = command_line("launch", keywords)

    found = split([*words, "train.py"]).options

    assert {name: found[name][-1].value for name in keywords} == keywords
