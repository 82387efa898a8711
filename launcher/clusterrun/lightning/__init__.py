"""For programs with Lightning: strategies that bind, and a callback that saves on suspension.

This import registers the strategies ``ddp_bind_numa`` and ``ddp_spawn_bind_numa``.

Each process of a strategy is bound to the CPUs near its GPU. The programs start themselves: one
``python train.py`` on each node. Number and rank of the node and the address of the first one come
from the platform, as for the command ``clusterrun``::

    import clusterrun.lightning

    trainer = Trainer(strategy="ddp_bind_numa", devices=8, num_nodes=2)
"""

from clusterrun.lightning.strategies import BindNumaStrategy, ClusterrunEnvironment
from clusterrun.lightning.suspend_checkpoint import ResumableLoader, SuspendCheckpoint

__all__ = ["BindNumaStrategy", "ClusterrunEnvironment", "ResumableLoader", "SuspendCheckpoint"]
