"""A worker finds torch as the server has imported it, or executes its program; with a small torch."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.workers.fork_server.preloading.script_table import Row, rows_of
from tests.workers.interpreters import FORK_SERVER, oldest_python

AS_A_WORKER = """
from fork_server.preloading.preloaded_torch import PreloadedTorch
import importlib.util, io, logging, os
sys.path.insert(0, {installed!r})
logging.getLogger("early").setLevel("INFO")
before, finders = set(sys.modules), list(sys.meta_path)
import torch
own, spec, loader = torch, torch.__spec__, torch.__loader__
preloaded = PreloadedTorch(before, {{"READ_BY_TORCH"}}, {printed!r})
del torch

def reexec(why):
    os.write(1, f"reexec: {{why}}\\n".encode())
    os._exit(0)

preloaded.hide(reexec)
"""

AFTER_IT = """
assert torch is own and sys.modules["torch"] is own, torch
assert sys.modules["torch.nn"] is own.nn and own.nn.made == 1
assert torch.__spec__ is spec and torch.__loader__ is loader
assert sys.meta_path == finders
assert torch.times == [1]
"""

TORCH = {
    "torch/__init__.py": "import logging, warnings, helper\ntimes = [1]\nfrom . import nn\n",
    "torch/nn/__init__.py": "made = 1\n",
    "torch/late.py": "import torch\n",
    "helper.py": "import logging\nlogging.getLogger('helper')\n",
}


def run(
    python: str,
    folder: Path,
    code: str,
    printed: tuple[bytes, bytes] = (b"", b""),
    **variables: str,
) -> str:
    """Return what a worker prints that runs this code while torch is hidden.

    ``printed``: what torch has printed to standard output and error in the server.
    """
    for name, text in TORCH.items():
        file = folder / "site-packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    start = AS_A_WORKER.format(
        installed=str(folder / "site-packages"),
        printed=printed,
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [python, "-c", f"{FORK_SERVER}{start}\n{code}"],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture(params=["own", "oldest"])
def python(request: pytest.FixtureRequest) -> str:
    """Return an interpreter."""
    python = sys.executable if request.param == "own" else oldest_python()
    if python is None:
        pytest.skip("no such Python here")
    return python


HELPERS = f"""
def seen():
    return [name for name in ("helper", "torch", "logging") if name in sys.modules]

def assert_torch_is_own():
    torch = sys.modules["torch"]
{indent(AFTER_IT, "    ")}
"""

IMPORTS = [
    "import torch",
    "import torch.nn",
    "from torch.nn import made",
    "from torch import nn",
    "import torch.nn as nn",
    "import torch.late; assert torch.late.torch is torch",
    "import importlib; importlib.import_module('torch')",
    "import importlib; importlib.import_module('torch.nn')",
    "importlib.util.find_spec('torch.nn')",
    "importlib.util.find_spec('torch'); import torch",
    "import threading as t; it = t.Thread(target=__import__, args=['torch']); it.start(); it.join()",
    "import torch; del torch; import torch",
]


@pytest.mark.parametrize("statement", IMPORTS)
def test_import_finds_preloaded_module(python: str, tmp_path: Path, statement: str) -> None:
    """Torch is not executed again."""
    hidden = "assert not [name for name in sys.modules if name.partition('.')[0] == 'torch']"
    code = f"{hidden}\n{statement}\ntorch = sys.modules['torch']\n{AFTER_IT}print('same')"

    assert run(python, tmp_path, code) == "same"


def test_find_spec_imports_nothing(python: str, tmp_path: Path) -> None:
    code = """
found = importlib.util.find_spec("torch")
print(found.origin, found.name, found.has_location, found.parent)
print(found.submodule_search_locations, found.cached == spec.cached)
print(found.loader.get_filename("torch"), found.loader.is_package("torch"))
print("torch" in sys.modules, importlib.util.find_spec("nosuch"))
import pkgutil
print([each.name for each in pkgutil.iter_modules(found.submodule_search_locations)])
"""
    folder = tmp_path / "site-packages/torch"

    assert run(python, tmp_path, code).splitlines() == [
        f"{folder / '__init__.py'} torch True torch",
        f"['{folder}'] True",
        f"{folder / '__init__.py'} True",
        "False None",
        "['late', 'nn']",
    ]


def test_torch_is_shown_at_the_end_of_the_script(python: str, tmp_path: Path) -> None:
    """So Python finalizes its modules like others."""
    code = "preloaded.show(); torch = sys.modules['torch']\n"

    assert run(python, tmp_path, f"{code}{AFTER_IT}preloaded.show(){AFTER_IT}print(1)") == "1"


@pytest.mark.parametrize("row", rows_of("preloaded.txt"))
def test_script_prints(python: str, tmp_path: Path, row: Row) -> None:
    printed = run(python, tmp_path, f"{HELPERS}\n{row.script}")

    assert " / ".join(printed.splitlines()) == row.found


@pytest.mark.parametrize("row", rows_of("changes.txt"))
def test_change_before_the_import(python: str, tmp_path: Path, row: Row) -> None:
    """The program is executed again, or torch is not."""
    for file, text in row.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    start = f"site_packages = {str(tmp_path / 'site-packages')!r}"
    code = f"{start}\n{row.script}\nimport torch\n{AFTER_IT}print('reexec: nothing')"

    assert run(python, tmp_path, code, MKL_NUM_THREADS="1") == f"reexec: {row.found}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")
def test_changed_affinity_executes_the_program(python: str, tmp_path: Path) -> None:
    code = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nimport torch"

    assert run(python, tmp_path, code) == "reexec: the CPUs that it may use had changed"


def test_import_fails_in_process_forked_by_the_script(python: str, tmp_path: Path) -> None:
    """It can't execute its program."""
    code = """
def fails(why):
    raise ImportError(why)
preloaded._reexec = fails
os.environ["OMP_NUM_THREADS"] = "3"
for name in "torch", "torch.nn":
    try:
        __import__(name)
    except ImportError as error:
        print(error)
print([name for name in sys.modules if name.partition(".")[0] == "torch"])
del os.environ["OMP_NUM_THREADS"]
import torch
"""
    printed = run(python, tmp_path, code + AFTER_IT)

    assert printed.splitlines() == ["OMP_NUM_THREADS was set"] * 2 + ["[]"]


def test_output_of_the_import_is_printed_once(python: str, tmp_path: Path) -> None:
    code = """
print("before", flush=True)
sys.stderr = sys.stdout
preloaded._facts = dict(preloaded._facts_now())
import torch
import torch.nn
print("after")
"""
    printed = run(python, tmp_path, code, printed=(b"Hello\n", b"warns: \xff\n"))

    assert printed.splitlines() == ["before", "Hello", "warns: \ufffd", "after"]


def test_output_of_the_import_without_stream(python: str, tmp_path: Path) -> None:
    """Python sets a stream to None if its descriptor is closed."""
    code = """
sys.stderr = None
preloaded._facts = dict(preloaded._facts_now())
import torch
print("after")
"""
    assert run(python, tmp_path, code, printed=(b"", b"x\n")) == "after"


def test_filters_matter_if_the_import_printed_something(python: str, tmp_path: Path) -> None:
    """It may have been a warning."""
    code = "import warnings; warnings.simplefilter('ignore')\nimport torch"

    assert run(python, tmp_path, code, printed=(b"", b"x\n")) == (
        "reexec: a filter of warnings had changed"
    )
    assert run(python, tmp_path, code) == ""
