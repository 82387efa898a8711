"""The configuration files of the tests' Slurm.

Its GPUs are device files that do nothing; Slurm schedules them and sets CUDA_VISIBLE_DEVICES.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.host import Host

GPUS_PER_NODE = 4
CPUS_PER_NODE = 2
"""Not more than the machine has: otherwise Slurm does not bind tasks to separate CPUs.

For more tasks than CPUs, use ``srun --overcommit``.
"""

# AuthInfo: this machine may run another munged with another key.
# SlurmctldDebug: only at debug the log says that a node has registered.
# JobCompLoc: `sbatch --wait` sees the end of a job up to ten seconds late.
# PreemptType: a job in the partition "urgent" ends those in "low", which have GraceTime to save.
# bf_interval: only the backfill scheduler starts heterogeneous jobs, every half minute unless set.
# config_overrides: a node is idle although the machine has another number of CPUs.
SLURM_CONF = """
ClusterName=testbed
SlurmctldHost=ctl({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldDebug=debug
JobCompType=jobcomp/script
JobCompLoc={folder}/record_end
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/affinity
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
"""

RECORD_END = """\
#!/bin/sh
echo "job $JOBID $JOBSTATE $EXITCODE" >> {folder}/ends
"""


def write_files(folder: Path, controller: Host, nodes: Sequence[Host], proctrack: str) -> list[str]:
    """Write slurm.conf and the files that it names; return the command of its munged.

    Args:
        folder: for all files of this Slurm.
        controller: where slurmctld and munged are to run.
        nodes: where slurmd is to run; munge's socket is a file, and one for all hosts.
        proctrack: the plugin that knows the processes of a step.

    """
    described = "\n".join(map(_describe, nodes))
    conf = SLURM_CONF.format(
        folder=folder, controller=controller.address, nodes=described, proctrack=proctrack
    )
    (folder / "slurm.conf").write_text(conf)
    _write_gpus(folder)
    _write_completion_script(folder)
    return _munged(folder)


def _describe(node: Host) -> str:
    what = f"CPUs={CPUS_PER_NODE} Gres=gpu:{GPUS_PER_NODE} Feature=of_{node.name} State=UNKNOWN"
    return f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} {what}"


def _write_gpus(folder: Path) -> None:
    null = Path("/dev/null").stat().st_rdev
    for number in range(GPUS_PER_NODE):
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o666, null)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")


def _write_completion_script(folder: Path) -> None:
    (folder / "ends").touch()
    script = folder / "record_end"
    script.write_text(RECORD_END.format(folder=folder))
    script.chmod(0o755)


def _munged(folder: Path) -> list[str]:
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = {"socket": "socket", "key": "key-file", "pid": "pid-file", "seed": "seed-file"}
    paths = [f"--{option}={folder}/munge.{ending}" for ending, option in files.items()]
    return ["munged", "--foreground", *paths]
