"""For programs with Lightning: a strategy that starts clusterrun, and a callback that saves on suspension.

Importing this module registers the strategy ``ddp_bind_numa``, with the alias ``ddp_spawn_bind_numa``.
Start the program with plain ``python train.py``, once on each node: ``fit`` executes it again as
``clusterrun train.py``. The number of nodes, the rank of the node and the address of node 0 come from the
platform, as for the command::

    import clusterrun.lightning

    trainer = Trainer(strategy="ddp_bind_numa", devices=8, num_nodes=2)
"""

import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clusterrun import suspend
from clusterrun.errors import UsageError
from clusterrun.processes import python_options
from clusterrun.run.preview import described

try:
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
    from lightning.pytorch.strategies.launchers.launcher import _Launcher
    from lightning.pytorch.utilities import CombinedLoader
except ImportError:
    # Older releases have this name.
    from lightning_fabric.plugins.environments.lightning import (  # type: ignore[assignment]
        LightningEnvironment,
    )
    from pytorch_lightning import Callback, Trainer  # type: ignore[assignment]
    from pytorch_lightning.strategies import (  # type: ignore[assignment]
        DDPStrategy,
        StrategyRegistry,
    )
    from pytorch_lightning.strategies.launchers.launcher import _Launcher  # type: ignore[assignment]
    from pytorch_lightning.utilities import CombinedLoader  # type: ignore[assignment]

__all__ = ["BindNumaStrategy", "ClusterrunEnvironment", "ResumableLoader", "SuspendCheckpoint"]

_SAVED = "suspended-step=*.ckpt"

_FIRST_FOLDER = Path.cwd()
"""Where the program was started: Hydra changes the folder later."""


class ClusterrunEnvironment(LightningEnvironment):
    """An environment plugin of Lightning for every platform that clusterrun knows.

    If LOCAL_RANK is set, Lightning or a launcher has started the process and set all variables, and the plugin
    behaves like ``LightningEnvironment``.
    """

    def __init__(self) -> None:
        """Read the platform's variables.

        Raises:
            UsageError: they disagree.

        """
        super().__init__()
        self._job = None if "LOCAL_RANK" in os.environ else described({}, os.environ).job

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the scheduler starts a task for each GPU."""
        if self._job is None:
            return bool(super().creates_processes_externally)
        return self._job.tasks is not None

    @property
    def main_address(self) -> str:
        """The address of node 0."""
        if self._job is None or self._job.rendezvous.master_addr is None:
            return str(super().main_address)
        return self._job.rendezvous.master_addr

    @property
    def main_port(self) -> int:
        """A port of node 0, the same on all nodes."""
        if self._job is not None and self._job.rendezvous.master_port is not None:
            return self._job.rendezvous.master_port
        if self._job is not None and self._job.port_candidates:
            return self._job.port_candidates[0]
        return int(super().main_port)

    def node_rank(self) -> int:
        """Return the rank of this node."""
        if self._job is None:
            return int(super().node_rank())
        tasks = self._job.tasks
        return (self._job.workers.node_rank or 0) if tasks is None else tasks.node_rank

    def local_rank(self) -> int:
        """Return the rank of this process on its node."""
        tasks = None if self._job is None else self._job.tasks
        return int(super().local_rank()) if tasks is None else tasks.local_rank

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check what the trainer was given against the platform, or against the variables of this rank.

        Raises:
            UsageError: the numbers differ.

        """
        self.check(num_nodes, num_devices)
        ranks, size = num_nodes * num_devices, os.environ.get("WORLD_SIZE")
        if self._job is None and size not in {None, f"{ranks}"}:
            raise UsageError(
                f"Trainer(num_nodes={num_nodes}, devices={num_devices}) has {ranks} ranks, but WORLD_SIZE"
                f" is {size}",
                f"set num_nodes and devices to numbers whose product is {size}",
            )

    def check(self, num_nodes: int, num_devices: int) -> None:
        """Check what the trainer was given against the platform.

        Raises:
            UsageError: the numbers differ.

        """
        if self._job is None:
            return
        tasks, origin = self._job.tasks, self._job.origin("nnodes")
        if (found := self._job.nnodes if tasks is None else tasks.nodes) != num_nodes:
            raise UsageError(
                f"Trainer(num_nodes={num_nodes}), but {origin} says {found}",
                f"set Trainer(num_nodes={found})",
            )
        if tasks is not None and tasks.local_size != num_devices:
            raise UsageError(
                f"Trainer(devices={num_devices}), but {self._job.origin('tasks')} has started"
                f" {tasks.local_size} tasks on this node",
                f"set Trainer(devices={tasks.local_size})",
            )


class BindNumaStrategy(DDPStrategy):
    """DDP whose processes are workers of ``clusterrun``, each bound to the CPUs near its GPU."""

    def __init__(self, *args: Any, alias: str | None = None, **kwargs: Any) -> None:
        """Take the arguments of ``DDPStrategy``; ``alias`` is the name by which the strategy was chosen."""
        super().__init__(*args, **kwargs)
        self.alias = alias

    def _configure_launcher(self) -> None:
        self._launcher = ClusterrunLauncher(self)


class ClusterrunLauncher(_Launcher):
    """Executes the program again as a script of ``clusterrun``, unless a launcher has started it."""

    def __init__(self, strategy: BindNumaStrategy) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        """Lightning reads it only in notebooks.

        Raises:
            UsageError: always.

        """
        raise UsageError(
            f"{self._name} runs the program again in each rank, but a notebook can't be run again",
            "call a function that makes the trainer, with strategy='ddp':\n"
            "  clusterrun.launch(train, nproc_per_node=8)",
        )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function in a worker; elsewhere execute the launcher, and do not return.

        Raises:
            UsageError: the trainer disagrees with the platform, its GPUs are not the first ones, or there
                is no script.

        """
        kwargs.pop("trainer", None)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            return function(*args, **kwargs)
        strategy = self._strategy
        ClusterrunEnvironment().check(strategy.num_nodes, strategy.num_processes)
        gpus = [each.index for each in strategy.parallel_devices or () if each.type == "cuda"]
        if gpus != [*range(len(gpus))]:
            # A worker is bound near the GPU whose index is its local rank.
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = visible.split(",") if visible else [f"{each}" for each in range(max(gpus) + 1)]
            chosen = ",".join(names[each] for each in gpus)
            raise UsageError(
                f"Trainer(devices={gpus}), but {self._name} uses the first GPUs that are visible",
                f"set CUDA_VISIBLE_DEVICES={chosen} and Trainer(devices={len(gpus)})",
            )
        if strategy.alias:
            sys.stderr.write(f"clusterrun: {self._name}: each rank runs the whole program\n")
        program = self._program()
        sys.stdout.flush()
        sys.stderr.flush()
        # -P: modules in the current folder must not shadow the launcher's.
        command = [sys.executable, python_options("-P"), "-m", "clusterrun"]
        command += ["--nproc-per-node", f"{strategy.num_processes}", *program]
        os.chdir(_FIRST_FOLDER)
        return os.execv(sys.executable, command)

    def kill(self, signum: int) -> None:
        """Do nothing: the launcher ends the workers."""

    @property
    def _name(self) -> str:
        return self._strategy.alias or "ddp_bind_numa"

    def _program(self) -> list[str]:
        """Return the command line of the program without ``python``."""
        main = sys.modules["__main__"]
        if main.__spec__ is not None:
            return ["-m", main.__spec__.name.removesuffix(".__main__"), *sys.argv[1:]]
        file = getattr(main, "__file__", None)
        if file is None or not Path(file).is_file():
            raise UsageError(
                f"{self._name} runs the program again, and this one has no file",
                "save it to a file: python train.py",
            )
        return [file, *sys.argv[1:]]


StrategyRegistry.register(
    "ddp_bind_numa", BindNumaStrategy, description="DDP, each process on the CPUs near its GPU"
)
StrategyRegistry.register(
    "ddp_spawn_bind_numa",
    BindNumaStrategy,
    description="The same",
    alias="ddp_spawn_bind_numa",
)


class SuspendCheckpoint(Callback):
    """Saves a checkpoint when the job is suspended; the next start continues from that step.

        callback = SuspendCheckpoint("checkpoints")
        trainer = Trainer(callbacks=[callback])
        trainer.fit(model, ckpt_path=callback.resume_path)

    Besides Lightning's state, it saves the random generators of torch, numpy and ``random`` of each rank.
    """

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        """Take a folder that all nodes share; it is made with the first checkpoint."""
        super().__init__()
        self.folder = Path(dirpath)
        self._steps = 0
        self._generators: list[list[Any]] = []
        """The states loaded from the checkpoint, by rank; empty once restored."""
        self._within_epoch = False
        """The checkpoint was saved before the last batch of an epoch."""

    @property
    def resume_path(self) -> str | None:
        """The last checkpoint, if there is one."""
        saved = sorted(self.folder.glob(_SAVED), key=_steps_in)
        return str(saved[-1]) if saved else None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Restore the generators of this rank."""
        self._steps = trainer.global_step
        self._restore(trainer)
        if not self._within_epoch:
            self._generators = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Restore them again, because the loader has drawn numbers to find its batch."""
        self._restore(trainer)
        self._generators = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """If the job is being suspended, save, and end this process once all ranks have saved."""
        # Between two optimizer steps, gradients would be lost.
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if suspend.requested():
            self._save(trainer)
            suspend.ready()

    def state_dict(self) -> dict[str, Any]:
        return {"generators": self._generators, "within_epoch": self._within_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generators = state_dict["generators"]
        self._within_epoch = state_dict["within_epoch"]

    def _restore(self, trainer: Trainer) -> None:
        if len(self._generators) == trainer.world_size:
            _set_generator_states(self._generators[trainer.global_rank])

    def _save(self, trainer: Trainer) -> None:
        self._generators = _gather(_generator_states())
        self._within_epoch = not trainer.is_last_batch
        if trainer.is_last_batch:
            # With limit_train_batches, an epoch ends before its loaders do.
            for each in CombinedLoader(trainer.train_dataloader).flattened:
                if isinstance(each, ResumableLoader):
                    each.end_epoch()
        trainer.save_checkpoint(self.folder / "unfinished.ckpt")
        self._generators = []
        if trainer.is_global_zero:
            older = self.resume_path
            new = self.folder / _SAVED.replace("*", str(trainer.global_step))
            _remove(new)
            (self.folder / "unfinished.ckpt").rename(new)
            if older is not None and older != str(new):
                _remove(Path(older))


class ResumableLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that continues within an epoch when Lightning loads a checkpoint.

    It reads the earlier batches of the epoch again, and drops them. The dataset needs a length.
    """

    _taken = 0
    _to_drop = 0
    _rng_state: Any = None
    """Of torch's generator when the epoch began: the order of a shuffled epoch is drawn from it."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the remaining batches of the epoch."""
        self._taken, self._to_drop = self._to_drop, 0
        if self._taken:
            torch.set_rng_state(self._rng_state)
        self._rng_state = torch.get_rng_state()
        for batch in itertools.islice(super().__iter__(), self._taken, None):
            self._taken += 1
            yield batch

    def end_epoch(self) -> None:
        """Have a checkpoint continue with the next epoch."""
        self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken % len(self), "numbers": self._rng_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._to_drop, self._rng_state = state["taken"], state["numbers"]


def _generator_states() -> list[Any]:
    """Return the states of this rank's generators, in types that a checkpoint may contain."""
    state: Any = np.random.get_state()  # noqa: NPY002 - what programs use
    name, numbers, *rest = state
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [torch.get_rng_state(), [name, numbers.tolist(), *rest], random.getstate(), cuda]


def _set_generator_states(states: list[Any]) -> None:
    cpu, numpy, python, cuda = states
    torch.set_rng_state(cpu)
    np.random.set_state(tuple(numpy))  # noqa: NPY002 - as above
    random.setstate(python)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def _gather(mine: list[Any]) -> list[list[Any]]:
    """Return ``mine`` of each rank."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, mine)
    return gathered


def _steps_in(file: Path) -> int:
    return int(file.stem.partition("=")[2])


def _remove(checkpoint: Path) -> None:
    """Remove a file, or the folder that a sharding strategy writes."""
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    else:
        checkpoint.unlink(missing_ok=True)
