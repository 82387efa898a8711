"""GPUs that other jobs on this machine may use."""

from clusterrun.domain.machine import Machine, PciGpu


def gpus_of_jobs(machine: Machine) -> tuple[PciGpu, ...]:
    """Return the GPUs that this job or others may use, in bus order.

    GPUs known to be of another vendor are left out: mostly, they drive a display.
    """
    vendors = {gpu.vendor for gpu in machine.visible}
    others = {gpu.bdf for gpu in machine.gpus if gpu.vendor not in vendors}
    return tuple(gpu for gpu in machine.pci_gpus if gpu.bdf not in others)


def hidden_gpus(machine: Machine) -> tuple[PciGpu, ...]:
    """Return those of them that this job may not use."""
    own = {gpu.bdf for gpu in machine.visible}
    return tuple(gpu for gpu in gpus_of_jobs(machine) if gpu.bdf not in own)
