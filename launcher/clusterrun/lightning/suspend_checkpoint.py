"""A callback that saves at the step of a suspension, and a loader that goes on within an epoch."""

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clusterrun import suspend

try:
    from lightning.pytorch import Callback, Trainer
except ImportError:
    # The same under its older name.
    from pytorch_lightning import Callback, Trainer  # type: ignore[assignment]

_SAVED = "suspended-step=*.ckpt"


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
            set_generators(self._generators[trainer.global_rank])

    def _save(self, trainer: Trainer) -> None:
        self._generators = of_all_ranks(generators())
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


def generators() -> list[Any]:
    """Return the states of this rank's generators, in types that a checkpoint may hold."""
    state: Any = np.random.get_state()  # noqa: NPY002 - what programs use
    name, numbers, *rest = state
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [torch.get_rng_state(), [name, numbers.tolist(), *rest], random.getstate(), cuda]


def set_generators(states: list[Any]) -> None:
    cpu, numpy, python, cuda = states
    torch.set_rng_state(cpu)
    np.random.set_state(tuple(numpy))  # noqa: NPY002 - as above
    random.setstate(python)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def of_all_ranks(mine: list[Any]) -> list[list[Any]]:
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
