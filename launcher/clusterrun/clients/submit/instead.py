"""What to type in place of options that ``clusterrun submit`` does not have: sbatch's, srun's, and its own of 0.1.

Imported where an error is raised.
"""

import re
from collections.abc import Sequence
from shlex import quote

from clusterrun.errors import UsageError
from clusterrun.job.mistakes import mentions, script_in
from clusterrun.job.options import OPTIONS
from clusterrun.job.scheduler import SCHEDULERS

_OURS = {row.option.short for row in OPTIONS.values()} | {"h"}

_TITLES = {row.name.lower(): row.name for row in SCHEDULERS}

_DIRECTIVES = {
    "array": {"slurm": "--array=VALUE", "pbs": "-J VALUE"},
    "dependency": {
        "slurm": "--dependency=VALUE",
        "lsf": '-w "done(ID)"',
        "pbs": "-W depend=VALUE",
        "flux": "--dependency=VALUE",
    },
    "error": {
        "slurm": "--error=VALUE",
        "lsf": "-e VALUE",
        "pbs": "-e VALUE",
        "flux": "--error=VALUE",
    },
    "output": {
        "slurm": "--output=VALUE",
        "lsf": "-o VALUE",
        "pbs": "-o VALUE",
        "flux": "--output=VALUE",
    },
    "signal": {
        "slurm": "--signal=VALUE",
        "lsf": "-wa NAME -wt MINUTES",
        "flux": "--signal=SIGNAME@SECONDSs",
    },
}
"""Options of clusterrun 0.1, and sbatch's, that most schedulers have a directive for."""

_WITHOUT_DIRECTIVE = {
    "array": "submit once for each number",
    "dependency": "submit the job when the other has ended: --follow waits for it",
    "error": "leave it out: kubectl logs has what pods print; for files, type --log-dir DIR",
    "output": "leave it out: kubectl logs has what pods print; for files, type --log-dir DIR",
    "signal": "type --suspend-before SECONDS, which needs no signal",
}

_OWN = {
    "claims": (
        "type --directive='{volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}],"
        " containers: [{volumeMounts: [{name: data, mountPath: /FOLDER}]}]}'"
    ),
    "container": (
        "leave it out: apptainer starts an image that ends in .sif or begins with a scheme such as"
        " docker://, pyxis any other"
    ),
    "gpu-resource": "type --gpus-per-node VALUE:N",
    "groups": "write a script with hetjob by hand: docs/slurm.md has one",
    "modules": "type --setup 'module load VALUE'",
    "node-selector": "type --directive='nodeSelector: {VALUE}'",
    "quiet": "leave it out: standard output has the job's id alone",
    "save": "type --print > VALUE",
    "secrets": (
        "type --directive='{volumes: [{name: keys, secret: {secretName: NAME}}],"
        " containers: [{volumeMounts: [{name: keys, mountPath: /FOLDER}]}]}'"
    ),
    "tolerations": (
        "type --directive='tolerations: [{key: KEY, operator: Exists, effect: NoSchedule}]'"
    ),
    "wait": "type --follow > /dev/null",
}
"""Other options of clusterrun 0.1, and keys of a job file's sections; this goes after 0.2."""

_LETTERS = (
    "A=account B=extra-node-info C=constraint D=chdir E=preserve-env F=nodefile G=gpus H=hold"
    " I=immediate J=job-name K=kill-on-bad-exit L=licenses M=clusters N=nodes O=overcommit"
    " Q=quiet S=core-spec T=threads W=wait X=disable-status Z=no-allocate a=array b=begin"
    " c=cpus-per-task d=dependency e=error i=input k=no-kill l=label n=ntasks o=output"
    " p=partition q=qos s=oversubscribe u=unbuffered w=nodelist x=exclude"
)
"""Short options of sbatch(1) and srun(1) that are none of clusterrun's, with the long ones."""

_OF_SBATCH = {
    "account": "type --account VALUE",
    "constraint": "type --constraint VALUE",
    "container-image": "type --image VALUE",
    "container-mounts": "type --mounts VALUE",
    "container-workdir": "leave it out: the job runs in the folder that it is submitted from",
    "cpus-per-task": "type --cpus-per-gpu N: a node's CPUs are those of all of its GPUs",
    "export": "type --env for each variable that is set; those of this shell are there, too",
    "gpus": "type --gpus-per-node N: VALUE of sbatch's is for all nodes together",
    "gpus-per-task": "type --gpus-per-node N: one agent on each node starts all workers",
    "job-name": "type --job-name VALUE",
    "mem": (
        "type --memory-per-gpu SIZE, of which a node has one for each GPU, or --directive=--mem=VALUE"
    ),
    "mem-per-gpu": "type --memory-per-gpu VALUE",
    "nodes": "type --nnodes VALUE",
    "ntasks ntasks-per-gpu ntasks-per-node tasks-per-node": (
        "leave it out: one agent on each node starts --nproc-per-node workers, by default one for"
        " each GPU"
    ),
    "partition": "type --partition VALUE",
    "qos": "type --qos VALUE",
    "parsable": "leave it out: standard output has the job's id alone",
    "test-only": "type --print, which shows what would be submitted",
    "wrap": "type SCRIPT and its arguments after the options",
}

_ALONE = (
    "contiguous get-user-env hold nice no-kill no-requeue overcommit oversubscribe propagate reboot"
    " resv-ports spread-job stepmgr use-min-nodes"
)
"""Directives of sbatch without a value, or with one after = only."""

_WITH_VALUE = (
    "acctg-freq batch bb bbf begin bell chdir cluster-constraint clusters comment container-id"
    " container-name core-spec cores-per-socket cpu-freq deadline delay-boot distribution exclude"
    " export-file extra extra-node-info gid gpu-bind gpu-freq gpus-per-socket gres-flags hint input"
    " kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind mem-per-cpu mincpus network"
    " nodefile nodelist ntasks-per-core ntasks-per-socket open-mode power prefer priority profile"
    " reservation segment sockets-per-node switches thread-spec threads-per-core time-min tmp"
    " tres-bind tres-per-task uid wait-all-nodes wckey"
)
"""Directives of sbatch with a value."""

_OF_SRUN = (
    "accel-bind bcast compress cpu-bind disable-status epilog exact external-launcher het-group"
    " immediate interactive jobid kill-on-bad-exit label mpi msg-timeout multi-prog no-allocate"
    " overlap preserve-env prolog pty quit-on-interrupt relative send-libs slurmd-debug task-epilog"
    " task-prolog threads treewidth unbuffered whole"
)
"""Options of srun alone, which is in the script."""


def instead_of_option(name: str, value: str, scheduler: str) -> str:
    """Return what to type in place of an option or a key of 0.1; "" if there was none of that name.

    Args:
        name: may have - or _.
        value: what it was set to.
        scheduler: the one that the job is for; "": unknown.

    """
    name = name.replace("_", "-")
    if name == "modules":
        value = value.replace(",", " ")
    elif name == "node-selector":
        value = value.replace("=", ": ").replace(",", ", ")
    elif name == "dependency" and re.fullmatch(r"[\d:_]+", value):
        value = f"afterok:{value}"
    if name not in _DIRECTIVES:
        return _OWN.get(name, "").replace("VALUE", value)
    lines = {key: _directive(line, value) for key, line in _DIRECTIVES[name].items()}
    if scheduler:
        return f"type {lines[scheduler]}" if scheduler in lines else _WITHOUT_DIRECTIVE[name]
    first = lines.pop("slurm")
    others = [f"for {_TITLES[key]} {line}" for key, line in lines.items() if line != first]
    return f"type {first}; {', '.join(others)}"


def unknown_option(line: Sequence[str], words: Sequence[str]) -> UsageError | None:
    """Return the error for an option that submit does not have; None if it is not known here.

    Args:
        line: the words after ``submit``.
        words: those from that option on.

    """
    scheduler, is_long = _scheduler_in(line), words[0].startswith("--")
    typed, equals, value = words[0].partition("=")
    if not is_long:
        # -p all, -pall and -p=all.
        typed, equals, value = words[0][:2], "", words[0][2:].removeprefix("=")
    name = typed.removeprefix("--").replace("_", "-") if is_long else _long(typed[1:])
    if not is_long and words[0][2:].isalpha() and name in _OF_SRUN.split():
        # -l has no value: -lr is an option of the script.
        return None
    after = [word for word in words[1:2] if not word.startswith("-") and not word.endswith(".py")]
    if not is_long and scheduler in {"lsf", "pbs", "flux"} and typed[1:] not in _OURS:
        # A letter of sbatch's has another meaning there: -N of qsub is a name.
        value = "".join(f'"{word}"' if " " in word else word for word in after)
        own = _directive(f"{words[0]} {value}".strip(), "")
        return UsageError(
            f"there is no option {typed}",
            f"type the option of clusterrun for it (clusterrun submit --help), or {own}",
        )
    if not value and not equals and name not in _ALONE.split():
        value = "".join(after)
    if instead := instead_of_option(name, value or "VALUE", scheduler):
        had = " any more" if is_long else "; sbatch has one"
        return UsageError(f"there is no option {typed}{had}", instead)
    if is_long and mentions(script_in(words), typed):
        # Of the script, rather than of sbatch: --input, --batch.
        return None
    if name in _OF_SRUN.split():
        return UsageError(
            f"there is no option {typed}; srun has one",
            "leave it out: the script that submit writes starts srun; to change that line, type"
            " --print > FILE",
        )
    if instead := instead_of_sbatchs(name, value, scheduler):
        return UsageError(f"there is no option {typed}; sbatch has one", instead)
    return None


def _long(letter: str) -> str:
    """Return the long option of sbatch or srun for a short one; "" if they have none."""
    return dict(each.split("=") for each in _LETTERS.split()).get(letter, "")


def _scheduler_in(line: Sequence[str]) -> str:
    """Return the scheduler that ``line`` names with --to; "" for none."""
    for word, after in zip(line, (*line[1:], ""), strict=True):
        name = after if word == "--to" else word.removeprefix("--to=")
        if name in _TITLES and name != word:
            return name
    return ""


def instead_of_sbatchs(name: str, value: str, scheduler: str) -> str:
    """Return what to type in place of an option of sbatch; "" if it has none of that name."""
    if name == "gres":
        return _instead_of_gres(value)
    for names, hint in _OF_SBATCH.items():
        if name in names.split():
            if name == "nodes":
                # From 2 to 4, as sbatch has it.
                value = re.sub(r"^(\d+)-(\d+)$", r"\1:\2", value)
            elif name == "mem-per-gpu" and value.isdigit():
                # sbatch counts in MiB.
                value = f"{value}M"
            own = quote(value) if value else "VALUE"
            # The directive is sbatch's.
            ours = hint if scheduler in {"", "slurm"} else hint.partition(", or --directive")[0]
            return ours.replace("VALUE", own)
    if name not in {*_ALONE.split(), *_WITH_VALUE.split()}:
        return ""
    if scheduler == "kubernetes":
        return (
            "leave it out, or type what a pod has for it: --directive='nodeSelector: {KEY: VALUE}'"
        )
    if scheduler not in {"", "slurm"}:
        return f"type what {_TITLES[scheduler]} has for it: --directive='OPTION VALUE'"
    is_alone = name in _ALONE.split() and not value
    return f"type {_directive(f'--{name}' if is_alone else f'--{name}=VALUE', value or 'VALUE')}"


def _instead_of_gres(value: str) -> str:
    found = re.fullmatch(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?(?:\(.*\))?", value)
    if not found:
        return "type --gpus-per-node N for GPUs, --directive=--gres=NAME:N for anything else"
    return f"type --gpus-per-node {':'.join(filter(None, (found[1], found[2] or '1')))}"


def _directive(line: str, value: str) -> str:
    """Return the option of submit for a directive, in which VALUE is ``value``."""
    return f"--directive={quote(line.replace('VALUE', value))}"
