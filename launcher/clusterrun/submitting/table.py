"""The schedulers that jobs are submitted to."""

from collections.abc import Mapping

from clusterrun.submitting.scheduler import Scheduler
from clusterrun.submitting.schedulers.flux import Flux
from clusterrun.submitting.schedulers.kubernetes import Kubernetes
from clusterrun.submitting.schedulers.lsf import Lsf
from clusterrun.submitting.schedulers.pbs import Pbs
from clusterrun.submitting.schedulers.slurm import Slurm

BY_NAME: Mapping[str, Scheduler] = {
    each.name: each for each in (Slurm(), Lsf(), Flux(), Pbs(), Kubernetes())
}
