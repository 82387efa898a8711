"""A real notebook: functions in cells, failures, an interrupt, and a restart of the kernel."""

import json
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from free_ports import free_port
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from traitlets.config import Config

from tests.contract.launched import MARK, marked, plain_environment, remaining_processes
from tests.waiting import SECONDS_TO_ACT, wait_until

KERNEL = "python3"

CELLS = [
    "import clusterrun, os\nSCALE = 2",
    "def work(x):\n    print('rank', os.environ['RANK'])\n    return x * SCALE",
    "clusterrun.launch(work, (21,), nproc_per_node=2)",
    # An edited cell is run again.
    "SCALE = 3\ndef work(x):\n    return x * SCALE",
    "clusterrun.launch(work, (21,), nproc_per_node=2)",
    """
try:
    clusterrun.launch(lambda: [][1], nproc_per_node=2)
except clusterrun.WorkerFailed as failure:
    print(repr(failure.__cause__))
""",
    "clusterrun.launch(lambda: 1 / 0, nproc_per_node=2)",
]


NOTEBOOK = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def make_code_cell(number: int, text: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    return {**fields, "id": f"cell-{number}", "source": text}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a variable that all processes of the kernel have; check that none is left."""
    for name in os.environ.keys() - plain_environment().keys():
        monkeypatch.delenv(name)
    mark = f"notebook-{tmp_path}"
    monkeypatch.setenv(MARK, mark)
    # Only for this user: a kernel's files are in no shared folder.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    yield mark

    assert remaining_processes(mark, seconds=SECONDS_TO_ACT, besides=os.getpid()) == []


@pytest.mark.usefixtures("mark")
@pytest.mark.filterwarnings("ignore")
def test_launch_in_notebook_cells(tmp_path: Path) -> None:
    """The cells show results, output and a failure."""
    shown = cell_outputs(CELLS, tmp_path)

    assert shown[:2] == [[], []]
    assert sorted("".join(shown[2]).splitlines()) == [
        "[42, 42]",
        "[rank 0] rank 0",
        "[rank 1] rank 1",
    ]
    assert shown[4] == ["[63, 63]"]
    assert "IndexError('list index out of range')\n" in shown[5]
    assert "WorkerFailed" in shown[6][-1]
    assert "ZeroDivisionError: division by zero" in shown[6][-1]
    # No file has the line that failed.
    assert "    clusterrun.launch(lambda: 1 / 0, nproc_per_node=2)\n" in shown[6][-1]


CELLS_ON_RANKS = [
    "%load_ext clusterrun",
    "%%ranks\n1",
    "import clusterrun\nworkers = clusterrun.Workers(2)",
    "%%ranks\nimport os\nrank = int(os.environ['RANK'])\nx = 10 * rank\nx",
    "%%ranks 1\nprint('only here')\nx + 1",
    "workers.run(lambda: x)",
    "%%ranks\nif rank == 1:\n    x / (rank - 1)",
    "%%ranks one\n1",
    "%%ranks\nprint(x, end='')",
    "workers.close()",
]


@pytest.mark.usefixtures("mark")
@pytest.mark.filterwarnings("ignore")
def test_ranks_magic(tmp_path: Path) -> None:
    """Cells share state; each shows its own output, and its last value by rank."""
    shown = ["".join(texts) for texts in cell_outputs(CELLS_ON_RANKS, tmp_path)]

    assert "UsageError: no Workers are open\nworkers = clusterrun.Workers(4)" in shown[1]
    assert sorted(shown[3].splitlines()) == ["[rank 0] 0", "[rank 1] 10"]
    assert shown[4].splitlines() == ["[rank 1] only here", "[rank 1] 11"]
    assert shown[5] == "[0, 10]"
    assert "WorkerFailed: rank 1 on " in shown[6]
    assert "    x / (rank - 1)" in shown[6]
    assert "ZeroDivisionError" in shown[6]
    assert "%%ranks one: give nothing for all ranks, or one rank number" in shown[7]
    assert sorted(shown[8].splitlines()) == ["[rank 0] 0", "[rank 1] 10"]
    assert shown[9] == ""


def cell_outputs(cells: list[str], folder: Path) -> list[list[str]]:
    """Execute a notebook in this folder; return the outputs of each cell."""
    content = {"cells": [make_code_cell(*each) for each in enumerate(cells)], **NOTEBOOK}
    notebook = nbformat.reads(json.dumps(content), as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=100,
        kernel_name=KERNEL,
        allow_errors=True,
        config=kernel_config_with_free_ports(),
    )
    client.execute(cwd=str(folder))
    return [[*map(output_text, cell.outputs)] for cell in notebook.cells]


def kernel_config_with_free_ports() -> Config:
    """Return a configuration with reserved ports, because another test might take those that Jupyter finds."""
    names = ("shell", "iopub", "stdin", "hb", "control")
    ports = {f"{name}_port": free_port() for name in names}
    # With the cache, Jupyter chooses others.
    return Config({"KernelManager": {**ports, "cache_ports": False}})


def output_text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}\n" + "\n".join(output.traceback)
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


TRAIN_WITH_ACCELERATE = """
import json, os
from pathlib import Path

def train(folder, learning_rate):
    import torch
    from accelerate import Accelerator, PartialState

    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    data = torch.utils.data.DataLoader(torch.arange(32.0).reshape(16, 2) / 32, batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for batch in data:
        loss = (model(batch) - 3).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)).tolist())
    state = PartialState()
    seen = {
        "losses": losses,
        "weights": [each.tolist() for each in model.parameters()],
        "state": [state.process_index, state.local_process_index, state.num_processes],
        "is main": [state.is_main_process, state.is_local_main_process, state.is_last_process],
        "kind": [str(state.distributed_type), state.backend, str(state.device)],
        "precision": accelerator.mixed_precision,
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }
    (folder / str(state.process_index)).write_text(json.dumps(seen))
    accelerator.end_training()
    return seen
"""

COMPARE = """
from accelerate import notebook_launcher
import clusterrun

VARIABLES = [
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
]
theirs, ours = Path("theirs"), Path("ours")
theirs.mkdir()
ours.mkdir()
notebook_launcher(train, (theirs, 0.1), num_processes=2, use_port=PORT)
returned = clusterrun.launch(train, (ours, 0.1), nproc_per_node=2)
"""

SHOW = """
written = [[json.loads((side / rank).read_text()) for rank in "01"] for side in (theirs, ours)]
assert returned == written[1]
print(json.dumps(written))
"""


@pytest.mark.long
@pytest.mark.usefixtures("mark")
@pytest.mark.filterwarnings("ignore")
def test_same_results_as_accelerate_notebook_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, weights, accelerate's PartialState and the variables of each rank are equal."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    # The other one leaves it to each rank.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    compare = COMPARE.replace("PORT", f"{free_port()}")

    shown = cell_outputs([TRAIN_WITH_ACCELERATE, compare, SHOW], tmp_path)

    theirs, ours = json.loads(shown[-1][-1])
    assert ours == theirs
    assert [rank["state"] for rank in ours] == [[0, 0, 2], [1, 1, 2]]
    assert len(ours[0]["losses"]) == 4


@pytest.mark.filterwarnings("ignore")
def test_kernel_interrupt_and_restart(mark: str, tmp_path: Path) -> None:
    """The interrupt ends the job but not the kernel; a restart leaves no process of the job."""
    manager = KernelManager(kernel_name=KERNEL, config=kernel_config_with_free_ports())
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        client.execute_interactive("import clusterrun, time", timeout=60)
        works = (
            "def works():\n    print('ready', flush=True)\n    time.sleep(100)\n"
            "clusterrun.launch(works, nproc_per_node=2)"
        )
        asked = client.execute(works)
        wait_for(client, "ready", 2)
        manager.interrupt_kernel()
        assert exception_name_of_cell(client, asked) == "KeyboardInterrupt"
        assert exception_name_of_cell(client, client.execute("1 + 1")) == ""
        assert count_kernel_processes(mark) == 1
        client.execute(works)
        wait_for(client, "ready", 2)
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        wait_until(lambda: count_kernel_processes(mark) == 1, "the end of the job")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def count_kernel_processes(mark: str) -> int:
    return sum(1 for process in marked(mark) if process.pid != os.getpid())


def wait_for(client: BlockingKernelClient, text: str, times: int) -> None:
    """Wait until the kernel's cells have printed ``text`` that many times."""
    printed, deadline = "", time.monotonic() + SECONDS_TO_ACT
    while printed.count(text) < times:
        assert time.monotonic() < deadline, printed
        message = client.get_iopub_msg(timeout=SECONDS_TO_ACT)
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]


def exception_name_of_cell(client: BlockingKernelClient, asked: str) -> str:
    """Return the name of the exception that ended a cell, or ""."""
    deadline = time.monotonic() + SECONDS_TO_ACT
    while True:
        try:
            message = client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError("the cell does not end") from None
        if message["parent_header"].get("msg_id") == asked:
            return str(message["content"].get("ename", ""))
