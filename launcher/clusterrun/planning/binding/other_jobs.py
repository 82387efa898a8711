"""Which GPUs other jobs may use, beside ours and on the same CPUs."""

from clusterrun.domain.machine import Machine, PciGpu


def gpus_of_jobs(machine: Machine) -> tuple[PciGpu, ...]:
    """Return the GPUs that this job or others like it use, in bus order.

    Those of another vendor are left out where they are known: mostly, they draw the desktop.
    """
    vendors = {gpu.vendor for gpu in machine.visible}
    others = {gpu.bdf for gpu in machine.gpus if gpu.vendor not in vendors}
    return tuple(gpu for gpu in machine.pci_gpus if gpu.bdf not in others)


def hidden_gpus(machine: Machine) -> tuple[PciGpu, ...]:
    """Return those of them that are not this job's."""
    ours = {gpu.bdf for gpu in machine.visible}
    return tuple(gpu for gpu in gpus_of_jobs(machine) if gpu.bdf not in ours)
