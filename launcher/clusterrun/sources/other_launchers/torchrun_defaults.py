"""torchrun's defaults, if clusterrun is called as torchrun, and torch's own variables."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import WorkerCount
from clusterrun.sources.options.rows.failing import SHUTDOWN_TIMEOUT
from clusterrun.sources.options.rows.workers import NPROC_PER_NODE
from clusterrun.sources.settings import Settings

TORCHRUN = "torchrun"

ORIGIN = "torchrun's default"

DEFAULTS: Settings = {
    name: (Fact(text, ORIGIN),)
    for name, text in (
        ("numa_binding", "none"),
        ("gpus_per_worker", "0"),
        ("start_method", "spawn"),
        ("shutdown_timeout", "30"),
        ("no_fail_fast", "true"),
        ("rdzv_backend", "static"),
    )
}
"""Defaults if clusterrun is called as torchrun."""

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def called_as_torchrun(called: str) -> Fact[bool]:
    is_so = called == TORCHRUN
    return Fact(is_so, ORIGIN if is_so else "default")


def default_workers(called: str) -> Fact[int | WorkerCount]:
    """Return the number of workers on a node if neither options nor the cluster set it."""
    if called == TORCHRUN:
        return Fact(1, ORIGIN)
    return Fact(NPROC_PER_NODE.default, "default")


def default_prefix(called: str, *, is_teed: bool) -> Fact[str | None]:
    """Return the default template of the prefix of printed lines; None: clusterrun's own.

    torchrun puts a prefix only before lines that it prints for ``--tee`` (run.py of 2.13 and
    multiprocessing/tail_log.py): other lines stay as workers print them, and programs read them.
    """
    if called != TORCHRUN:
        return Fact(None, "default")
    return Fact("[${role_name}${local_rank}]:" if is_teed else "", ORIGIN)


def settings_from_torch(environ: Mapping[str, str]) -> Settings:
    """Return the setting of torch's own variable for the grace period, which is not a PET_ one."""
    if not environ.get(SHUTDOWN_VARIABLE):
        return {}
    return {SHUTDOWN_TIMEOUT.name: (Fact(environ[SHUTDOWN_VARIABLE], SHUTDOWN_VARIABLE),)}
