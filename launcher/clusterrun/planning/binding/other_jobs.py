"""Which GPUs other jobs may use, beside ours and on the same CPUs."""

from clusterrun.domain.machine import Machine, Site


def sites_of_jobs(machine: Machine) -> tuple[Site, ...]:
    """Return the GPUs that this job or others like it use, in bus order.

    Those of another vendor are left out where they are known: mostly, they draw the desktop.
    """
    vendors = {gpu.vendor for gpu in machine.visible}
    others = {gpu.bdf for gpu in machine.gpus if gpu.vendor not in vendors}
    return tuple(site for site in machine.sites if site.bdf not in others)


def hidden_sites(machine: Machine) -> tuple[Site, ...]:
    """Return those of them that are not this job's."""
    ours = {gpu.bdf for gpu in machine.visible}
    return tuple(site for site in sites_of_jobs(machine) if site.bdf not in ours)
