"""What torch imports later, on behalf of what a script names: preloaded too, where torch is.

Measured by ``scripts/measure_followers.py`` with torch 2.13: of all that training calls (optimizers
and their first step, DistributedDataParallel, DataLoader, schedulers, autocast, collectives), one
import matters. The first optimizer or DistributedDataParallel imports ``torch._dynamo``: 820 modules,
1.6 s and 74 MB in each rank, as much again as torch itself.

``torch._dynamo`` itself is left to the workers: imported before DistributedDataParallel is made, it
lets gloo's process group wait for ever, every second time, when it is destroyed while a DDP module
lives (torch 2.13; torchrun hangs as often with a script that begins with ``import torch._dynamo``).
What it needs most is preloaded instead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

ANNOUNCING = frozenset(
    {
        *("DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel", "FSDP"),
        *("optim", "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS", "Muon", "Adafactor"),
        *("Accelerator", "Trainer", "Fabric"),
    }
)
"""Names in a script of what will make one of these."""

FOLLOWERS = ("sympy", "torch.fx.experimental.symbolic_shapes")


def followers_of_torch(words: Collection[str], strings: Collection[str]) -> tuple[str, ...]:
    """Return the modules to preload behind torch.

    Args:
        words: the names that the script mentions.
        strings: the strings in it. One that begins with ``TORCH`` may be a variable that these
            modules read when they are imported, and that the script sets before that.

    """
    if ANNOUNCING.isdisjoint(words) or any(text.startswith("TORCH") for text in strings):
        return ()
    return FOLLOWERS
