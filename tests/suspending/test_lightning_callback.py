"""Lightning's callback and loader, in one process that suspends itself."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusterrun import suspend

# Lightning warns of loggers, workers and srun.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: int | None, **options: Any
) -> list[int]:
    """Train, or continue, until the given call of ``suspend.requested``; return the samples taken."""
    import torch
    from clusterrun.lightning import ResumableLoader, SuspendCheckpoint
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Model(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            samples.append(int(batch[0, 0]))
            return super().training_step(batch, batch_idx)

        def train_dataloader(self) -> Any:
            return ResumableLoader(data, shuffle=True)

    def requested() -> bool:
        calls.append(True)
        return len(calls) == at

    def ready() -> None:
        raise SystemExit(0)

    samples: list[int] = []
    calls: list[bool] = []
    data: Any = torch.arange(12.0)[:, None].repeat(1, 32)
    monkeypatch.setattr(suspend, "requested", requested)
    monkeypatch.setattr(suspend, "ready", ready)
    callback = SuspendCheckpoint(folder)
    torch.manual_seed(0)
    trainer = Trainer(
        callbacks=[callback],
        max_epochs=3,
        accelerator="cpu",
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    with suppress(SystemExit):
        trainer.fit(Model(), ckpt_path=callback.resume_path)
    return samples


@pytest.mark.parametrize(
    ("options", "at"),
    [
        pytest.param({}, 5, id="within an epoch"),
        pytest.param({}, 12, id="last batch of an epoch"),
        pytest.param({"limit_train_batches": 5}, 5, id="last batch of a limited epoch"),
        pytest.param({"limit_train_batches": 5}, 7, id="within a limited epoch"),
    ],
)
def test_samples_of_a_suspended_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], at: int
) -> None:
    """They are those of a run without suspension, in the same order."""
    whole = taken(tmp_path / "whole", monkeypatch, None, **options)

    first = taken(tmp_path / "cut", monkeypatch, at, **options)
    rest = taken(tmp_path / "cut", monkeypatch, None, **options)

    assert len(first) == at
    assert first + rest == whole


def test_accumulated_gradients_are_applied_before_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a resumed run that is suspended at its first call."""
    batches = [len(taken(tmp_path, monkeypatch, 1, accumulate_grad_batches=4)) for _ in range(2)]

    assert batches == [4, 4]
