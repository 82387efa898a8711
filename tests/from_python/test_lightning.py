"""Lightning's strategies with NUMA binding, in typical programs."""

import os
import re
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from clusterrun.errors import UsageError
from free_ports import free_port

from tests.contract.launched import Launcher
from tests.waiting import SECONDS_TO_ACT

TRAIN = """
    import os, sys
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader
    import clusterrun.lightning

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch):
            return self.layer(batch).sum()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
        def on_train_end(self):
            # In one piece: the ranks share a pipe.
            print(f"rank {self.global_rank} of {self.trainer.world_size}"
                  f" node {self.trainer.node_rank} threads {threads()}\\n", end="", flush=True)

    def threads():
        masks = {tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task")}
        return sorted(masks)

    if __name__ == "__main__":
        options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False,
                       enable_model_summary=False, max_steps=2, accelerator="cpu")
        trainer = Trainer(strategy=sys.argv[1], devices=2, num_nodes=int(sys.argv[2]), **options)
        trainer.fit(Model(), DataLoader(torch.ones(8, 4), batch_size=2))
"""

ON_HFAI = {"MARSV2_TASK_ID": "7", "WORLD_SIZE": "2", "MARSV2_RANK": "0", "MASTER_IP": "127.0.0.1"}


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp_bind_numa", "ddp_spawn_bind_numa"])
def test_lightning_on_one_node(caller: Launcher, strategy: str) -> None:
    ended = caller.script(TRAIN, args=(strategy, "1")).ended(120)

    assert ended.code == 0, ended.err
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    found = re.findall(r"rank (\d) of 2 node 0 threads (.*)", ended.out)
    assert sorted(found) == [("0", f"{[cpus]}"), ("1", f"{[cpus]}")]
    notice = f"clusterrun: {strategy}: each rank runs the whole program\n"
    assert (notice in ended.err) == (strategy == "ddp_spawn_bind_numa")


def check_on_hfai(caller: Launcher, script: str, strategy: str) -> None:
    """Run a program on both nodes of a job; check that its four ranks have joined."""
    platform = {"MARSV2_TASK_ID": "7", "WORLD_SIZE": "2", "MASTER_IP": "127.0.0.1"}
    port = {"MASTER_PORT": str(free_port())}
    jobs = [
        caller.script(
            script,
            args=(strategy, "2"),
            environ={**platform, **port, "RANK": f"{rank}", "MARSV2_RANK": f"{rank}"},
        )
        for rank in range(2)
    ]

    ended = [job.ended(4 * SECONDS_TO_ACT) for job in jobs]

    assert [each.code for each in ended] == [0, 0], ended
    ranks = [sorted(re.findall(r"rank (\d) of 4 node (\d)", each.out)) for each in ended]
    assert ranks == [[("0", "0"), ("1", "0")], [("2", "1"), ("3", "1")]]


@pytest.mark.long
def test_one_lightning_program_on_each_hfai_node(caller: Launcher) -> None:
    """On hfai, RANK and WORLD_SIZE count nodes."""
    check_on_hfai(caller, TRAIN, "ddp_bind_numa")


@pytest.mark.long
def test_environment_plugin_alone_on_each_hfai_node(caller: Launcher) -> None:
    """Lightning starts the processes itself; the plugin reads nodes and addresses from the platform."""
    script = TRAIN.replace("options = dict(", "options = dict(plugins=[PLUGIN()], ").replace(
        "import clusterrun.lightning",
        "from clusterrun.lightning import ClusterrunEnvironment as PLUGIN",
    )
    check_on_hfai(caller, script, "ddp")


@pytest.mark.long
def test_wrong_num_nodes_is_usage_error(caller: Launcher) -> None:
    ended = caller.script(TRAIN, args=("ddp_spawn_bind_numa", "1"), environ=ON_HFAI).ended(120)

    assert ended.code != 0
    assert "Trainer(num_nodes=1), but WORLD_SIZE says 2" in ended.err


@pytest.mark.long
def test_program_on_standard_input_is_usage_error(caller: Launcher) -> None:
    """It can't be executed again, so nothing is started."""
    ended = caller.command("-c", dedent(TRAIN), "ddp_bind_numa", "1").ended(120)

    assert ended.code == 1
    message = "ddp_bind_numa runs the program again, and this one has no file\nsave it to a file"
    assert message in ended.err


NOTEBOOK = """
import sys
# As in a notebook; torch asks so, too.
sys.ps1 = ""
exec(open("train.py").read())
"""


@pytest.mark.long
def test_lightning_in_a_notebook(caller: Launcher) -> None:
    (caller.folder / "train.py").write_text(dedent(TRAIN))

    ended = caller.script(NOTEBOOK, args=("ddp_spawn_bind_numa", "1")).ended(120)

    assert ended.code == 1
    assert (
        "ddp_spawn_bind_numa runs the program again in each rank, but a notebook can't be run again"
        in ended.err
    )
    assert "clusterrun.launch(train, nproc_per_node=8)" in ended.err


class Executed(Exception):
    """In place of os.execv, which does not return; the arguments are those of python -P -m."""


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what the launcher reads of a strategy for two GPUs; nothing is executed."""
    import torch

    def execute(_: str, command: list[str]) -> None:
        raise Executed(*command[3:])

    monkeypatch.setattr(os, "execv", execute)
    gpus = [torch.device("cuda", index) for index in range(2)]
    return SimpleNamespace(alias=None, num_processes=2, num_nodes=1, parallel_devices=gpus)


def fit(strategy: Any) -> None:
    from clusterrun.lightning import ClusterrunLauncher

    ClusterrunLauncher(strategy).launch(print)


@pytest.mark.long
@pytest.mark.parametrize("module", [None, "package.train"])
def test_program_that_changes_folder_is_executed_where_it_was_started(
    strategy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str | None
) -> None:
    """Hydra changes the folder before fit; another file may have the same name there."""
    script, other = tmp_path / "train.py", tmp_path / "outputs"
    other.mkdir()
    for each in (script, other / "train.py"):
        each.touch()
    spec = module and SimpleNamespace(name=module)
    main: Any = SimpleNamespace(__file__=str(script), __spec__=spec)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs=2"])
    monkeypatch.setattr("clusterrun.lightning._FIRST_FOLDER", tmp_path)
    monkeypatch.chdir(other)

    with pytest.raises(Executed) as executed:
        fit(strategy)

    program = ("-m", module) if module else (str(script),)
    assert executed.value.args == ("clusterrun", "--nproc-per-node", "2", *program, "--epochs=2")
    assert Path.cwd() == tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("visible", "indices", "names"),
    [(None, [1, 3], "1,3"), ("4,5,6,7", [1, 3], "5,7"), ("1,0", [1, 0], "0,1")],
)
def test_other_gpus_than_the_first_are_a_usage_error(
    strategy: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    indices: list[int],
    names: str,
) -> None:
    """Each rank would be bound near another GPU."""
    import torch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    strategy.parallel_devices = [torch.device("cuda", index) for index in indices]

    with pytest.raises(UsageError) as error:
        fit(strategy)

    assert f"Trainer(devices={indices}), but ddp_bind_numa uses the first GPUs" in f"{error.value}"
    assert error.value.hint == f"set CUDA_VISIBLE_DEVICES={names} and Trainer(devices=2)"


STARTED = {"LOCAL_RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("environ", "devices", "message"),
    [
        (ON_HFAI, 8, "Trainer(num_nodes=1), but WORLD_SIZE says 2"),
        (STARTED, 3, "Trainer(num_nodes=1, devices=3) has 3 ranks, but WORLD_SIZE is 2"),
        (STARTED, 2, None),
    ],
)
def test_plugin_checks_the_trainers_numbers(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], devices: int, message: str | None
) -> None:
    """Lightning asks each plugin; ranks that wait for others would hang."""
    from clusterrun.lightning import ClusterrunEnvironment

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    plugin = ClusterrunEnvironment()

    if message is None:
        plugin.validate_settings(num_devices=devices, num_nodes=1)
        return
    with pytest.raises(UsageError) as error:
        plugin.validate_settings(num_devices=devices, num_nodes=1)
    assert message in f"{error.value}"
