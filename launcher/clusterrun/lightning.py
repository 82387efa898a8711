"""For programs with Lightning: a strategy that is the command, and a callback that saves on suspension.

This import registers the strategy ``ddp_bind_numa``, and ``ddp_spawn_bind_numa`` as its second name.
The program is started by plain ``python train.py``, once on each node, and ``fit`` executes it again
as the job of ``clusterrun train.py``. Number and rank of the node and the address of the first one come
from the platform, as for the command::

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
except ImportError:
    # The same under its older name.
    from lightning_fabric.plugins.environments.lightning import (  # type: ignore[assignment]
        LightningEnvironment,
    )
    from pytorch_lightning import Callback, Trainer  # type: ignore[assignment]
    from pytorch_lightning.strategies import (  # type: ignore[assignment]
        DDPStrategy,
        StrategyRegistry,
    )
    from pytorch_lightning.strategies.launchers.launcher import _Launcher  # type: ignore[assignment]

__all__ = ["BindNumaStrategy", "ClusterrunEnvironment", "ResumableLoader", "SuspendCheckpoint"]

_SAVED = "suspended-step=*.ckpt"


class ClusterrunEnvironment(LightningEnvironment):
    """Lightning's environment plugin for every platform that clusterrun knows.

    In a process that has LOCAL_RANK already, it is Lightning's own: that process was started by
    Lightning or by a launcher, with all variables.
    """

    def __init__(self) -> None:
        """Read the platform's variables.

        Raises:
            UsageError: they contradict each other.

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
        """The address of the first node."""
        if self._job is None or self._job.rendezvous.master_addr is None:
            return str(super().main_address)
        return self._job.rendezvous.master_addr

    @property
    def main_port(self) -> int:
        """A port of the first node, the same on all nodes."""
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
                f"type Trainer(num_nodes={found})",
            )
        if tasks is not None and tasks.local_size != num_devices:
            raise UsageError(
                f"Trainer(devices={num_devices}), but {self._job.origin('tasks')} has started"
                f" {tasks.local_size} tasks on this node",
                f"type Trainer(devices={tasks.local_size})",
            )


class BindNumaStrategy(DDPStrategy):
    """DDP whose processes are workers of ``clusterrun``, each bound to the CPUs near its GPU."""

    def __init__(self, *args: Any, second_name: str = "", **kwargs: Any) -> None:
        """Take what ``DDPStrategy`` takes.

        Args:
            args: of ``DDPStrategy``.
            second_name: by which it was chosen; "": by its first.
            kwargs: of ``DDPStrategy``.

        """
        super().__init__(*args, **kwargs)
        self.second_name = second_name

    def _configure_launcher(self) -> None:
        self._launcher = ClusterrunLauncher(self)


class ClusterrunLauncher(_Launcher):
    """Executes the program again, as the script of ``clusterrun``, unless a launcher has started it."""

    def __init__(self, strategy: BindNumaStrategy) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        """Lightning asks in notebooks only.

        Raises:
            UsageError: always.

        """
        raise UsageError(
            f"{self._name} runs the program again in each rank, but a notebook can't be run again",
            "call a function that makes the trainer, with strategy='ddp':\n"
            "  clusterrun.launch(train, nproc_per_node=8)",
        )

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function in a worker; elsewhere become the launcher, and do not return.

        Raises:
            UsageError: the trainer contradicts the platform, or there is no script.

        """
        kwargs.pop("trainer", None)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            return function(*args, **kwargs)
        strategy = self._strategy
        ClusterrunEnvironment().check(strategy.num_nodes, strategy.num_processes)
        words = ["--nproc-per-node", f"{strategy.num_processes}"]
        gpus = [f"{each.index}" for each in strategy.parallel_devices or () if each.type == "cuda"]
        if gpus:
            words += ["--devices", ",".join(gpus)]
        if strategy.second_name:
            sys.stderr.write(f"clusterrun: {self._name}: each rank runs the whole program\n")
        program = self._program()
        sys.stdout.flush()
        sys.stderr.flush()
        # -P: no module of the current folder takes the place of one of ours.
        command = [sys.executable, python_options("-P"), "-m", "clusterrun", *words, *program]
        return os.execv(sys.executable, command)

    def kill(self, signum: int) -> None:
        """Lightning ends what it has started: the launcher does that."""

    @property
    def _name(self) -> str:
        return self._strategy.second_name or "ddp_bind_numa"

    def _program(self) -> list[str]:
        """Return the words that follow ``python``."""
        spec = sys.modules["__main__"].__spec__
        if spec is not None:
            return ["-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
        if not Path(sys.argv[0]).is_file():
            raise UsageError(
                f"{self._name} runs the program again, and this one has no file",
                "save it to a file: python train.py",
            )
        return [*sys.argv]


StrategyRegistry.register(
    "ddp_bind_numa", BindNumaStrategy, description="DDP, each process on the CPUs near its GPU"
)
StrategyRegistry.register(
    "ddp_spawn_bind_numa",
    BindNumaStrategy,
    description="The same",
    second_name="ddp_spawn_bind_numa",
)


class SuspendCheckpoint(Callback):
    """Saves at the step at which the job is suspended; the next start goes on from there.

        callback = SuspendCheckpoint("checkpoints")
        trainer = Trainer(callbacks=[callback])
        trainer.fit(model, ckpt_path=callback.resume_path)

    What Lightning saves is saved, and the generators of torch, numpy and ``random`` of each rank.
    """

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        """Take a folder that all nodes share; it is made when something is saved."""
        super().__init__()
        self.folder = Path(dirpath)
        self._steps = 0
        self._generators: list[list[Any]] = []
        """By rank, of the run before; empty once restored."""
        self._within_epoch = False
        """The run before was suspended before the last batch of an epoch."""

    @property
    def resume_path(self) -> str | None:
        """What the last suspension has saved; None before the first one."""
        saved = sorted(self.folder.glob(_SAVED), key=_steps_in)
        return str(saved[-1]) if saved else None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Go on with the numbers that this rank would have drawn."""
        self._restore(trainer)
        if not self._within_epoch:
            self._generators = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Restore them once more: the loader has drawn to find where it was."""
        self._restore(trainer)
        self._generators = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if the job is to be suspended, and end this process once all ranks have.

        Between two steps of the optimizer, gradients would be lost.
        """
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
            _set_generators(self._generators[trainer.global_rank])

    def _save(self, trainer: Trainer) -> None:
        self._generators = _of_all_ranks(_generators())
        self._within_epoch = not trainer.is_last_batch
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
    """A DataLoader that goes on within an epoch when Lightning loads a checkpoint.

    It reads the batches that the epoch has had, and drops them. The dataset needs a length.
    """

    _taken = 0
    _to_drop = 0
    _numbers: Any = None
    """Of torch's generator, as the epoch began: the order of a shuffled epoch is drawn from it."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the epoch that are left."""
        self._taken, self._to_drop = self._to_drop, 0
        if self._taken:
            torch.set_rng_state(self._numbers)
        self._numbers = torch.get_rng_state()
        for batch in itertools.islice(super().__iter__(), self._taken, None):
            self._taken += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken % len(self), "numbers": self._numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._to_drop, self._numbers = state["taken"], state["numbers"]


def _generators() -> list[Any]:
    """Return the states of this rank's generators, in types that a checkpoint may hold."""
    state: Any = np.random.get_state()  # noqa: NPY002 - what programs use
    name, numbers, *rest = state
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [torch.get_rng_state(), [name, numbers.tolist(), *rest], random.getstate(), cuda]


def _set_generators(states: list[Any]) -> None:
    cpu, numpy, python, cuda = states
    torch.set_rng_state(cpu)
    np.random.set_state(tuple(numpy))  # noqa: NPY002 - as above
    random.setstate(python)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def _of_all_ranks(mine: list[Any]) -> list[list[Any]]:
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
