"""Simulated LSF, PBS and Flux: the variables of a script, and the commands that start tasks on nodes.

The commands enter the hosts of a test; the variables are those of the
manuals (IBM Spectrum LSF, "Environment variables"; PBS Professional, qsub and pbsdsh; flux-core,
flux-run(1) and its shell's task.c).
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.contract.launched import COMMAND, Ended
from tests.hosts.host import Host

ROOT = Path(__file__).parents[2]
SECONDS_OF_A_JOB = 60.0

# The script runs on the first host.
ENTER = """\
enter() {{
    case $1 in
{cases}
    *) echo "no such node: $1" >&2; exit 1 ;;
    esac
}}
"""

# blaunch -z "HOST ..." COMMAND: with the variables of the caller.
BLAUNCH = """\
[ "$1" = -z ] || exit 64
hosts=$2
shift 2
for host in $hosts; do enter "$host" "$@" & done
wait
"""

# pbsdsh -n NUMBER -- COMMAND: with PBS's variables only.
PBSDSH = """\
[ "$1" = -n ] && [ "$3" = -- ] || exit 64
host=$(uniq "$PBS_NODEFILE" | sed -n "$(($2 + 1))p")
shift 3
enter "$host" env -i PBS_JOBID="$PBS_JOBID" PBS_NODENUM=0 "$@"
"""

# flux run --nodes=N --ntasks=N OPTIONS COMMAND: the shell of each task sets its rank.
FLUX_RUN = """\
[ "$1" = run ] || exit 64
shift
while :; do
    case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --ntasks=*) tasks=${1#*=} ;;
    --cores-per-task=* | --gpus-per-task=* | --exclusive) ;;
    *) break ;;
    esac
    shift
done
rank=0
for host in $HOSTS_OF_THE_TEST; do
    [ "$rank" -lt "$tasks" ] || break
    FLUX_TASK_RANK=$rank FLUX_TASK_LOCAL_ID=0 FLUX_JOB_SIZE=$tasks FLUX_JOB_NNODES=$nodes \\
        enter "$host" "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
exit "$code"
"""


def run_script(scheduler: str, hosts: Sequence[Host], folder: Path, words: str) -> Ended:
    """Run the script of configs/schedulers on the first host, with ``words`` in place of train.py."""
    script = (ROOT / f"configs/schedulers/{scheduler}.sh").read_text()
    assert script.count("train.py") == 1
    (folder / "script").write_text(script.replace("train.py", words))
    variables, commands = _SYSTEMS[scheduler](hosts, folder)
    cases = "\n".join(
        f'    {host.name}) shift; {shlex.join(host.around)} "$@" ;;' for host in hosts
    )
    for name, text in commands.items():
        _write(folder / "node" / name, ENTER.format(cases=cases) + text)
    return hosts[0].run(
        *("bash", str(folder / "script")),
        environ={**variables, "PATH": f"{folder}/node:{Path(COMMAND).parent}:{os.defpath}"},
        # PBS begins in the home folder.
        folder=Path("/") if scheduler == "pbs" else folder,
        seconds=SECONDS_OF_A_JOB,
    )


def _lsf(hosts: Sequence[Host], folder: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    slots = [host.name for host in hosts for _ in range(2)]
    (folder / "slots").write_text("".join(f"{name}\n" for name in slots))
    variables = {
        "LSB_JOBID": "7",
        "LSB_DJOB_HOSTFILE": str(folder / "slots"),
        "LSB_HOSTS": " ".join(slots),
        "LSB_MCPU_HOSTS": " ".join(f"{host.name} 2" for host in hosts),
    }
    return variables, {"blaunch": BLAUNCH}


def _pbs(hosts: Sequence[Host], folder: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    (folder / "nodefile").write_text("".join(f"{host.name}\n" for host in hosts))
    variables = {
        "PBS_JOBID": "7.server",
        "PBS_NODEFILE": str(folder / "nodefile"),
        "PBS_O_WORKDIR": str(folder),
    }
    return variables, {"pbsdsh": PBSDSH}


def _flux(hosts: Sequence[Host], _folder: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    names = " ".join(host.name for host in hosts)
    return {"HOSTS_OF_THE_TEST": names, "FLUX_JOB_ID": "7"}, {"flux": FLUX_RUN}


_System = Callable[[Sequence[Host], Path], tuple[Mapping[str, str], Mapping[str, str]]]
_SYSTEMS: Mapping[str, _System] = {"lsf": _lsf, "pbs": _pbs, "flux": _flux}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
