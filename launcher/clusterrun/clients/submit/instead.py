"""What to type in place of options that ``clusterrun submit`` does not have: sbatch's, and its own of 0.1.

Imported where an error is raised.
"""

from collections.abc import Sequence
from shlex import quote

from clusterrun.errors import UsageError

_OWN = {
    "array": "type --directive=--array=VALUE, for PBS --directive='-J VALUE'",
    "claims": (
        "type --directive='{volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}],"
        " containers: [{volumeMounts: [{name: data, mountPath: /FOLDER}]}]}'"
    ),
    "container": (
        "leave it out: apptainer starts an image that ends in .sif or begins with a scheme such as"
        " docker://, pyxis any other"
    ),
    "dependency": (
        "type --directive=--dependency=VALUE; for LSF --directive='-w \"done(ID)\"', for PBS"
        " --directive='-W depend=VALUE'"
    ),
    "error": "type --directive=--error=VALUE, for LSF and PBS --directive='-e VALUE'",
    "gpu-resource": "type --gpus-per-node VALUE:N",
    "groups": "write a script with hetjob by hand: docs/slurm.md has one",
    "modules": "type --setup 'module load VALUE'",
    "node-selector": "type --directive='nodeSelector: {VALUE}'",
    "output": "type --directive=--output=VALUE, for LSF and PBS --directive='-o VALUE'",
    "quiet": "leave it out: standard output has the job's id alone",
    "save": "type --print > VALUE",
    "secrets": (
        "type --directive='{volumes: [{name: keys, secret: {secretName: NAME}}],"
        " containers: [{volumeMounts: [{name: keys, mountPath: /FOLDER}]}]}'"
    ),
    "signal": (
        "type --directive=--signal=VALUE, or --suspend-before SECONDS, which needs no signal;"
        " for LSF --directive='-wa NAME -wt MINUTES', for Flux --directive=--signal=SIGNAME@SECONDSs"
    ),
    "tolerations": (
        "type --directive='tolerations: [{key: KEY, operator: Exists, effect: NoSchedule}]'"
    ),
    "wait": "type --follow > /dev/null",
}
"""Options of clusterrun 0.1, and keys of a job file's sections; this goes after 0.2."""

_OF_SBATCH = {
    "A": "type --account VALUE",
    "C": "type --constraint VALUE",
    "G gpus": "type --gpus-per-node N: VALUE of sbatch's is for all nodes together",
    "J": "type --job-name VALUE",
    "N nodes": "type --nnodes VALUE",
    "ntasks-per-node n ntasks tasks-per-node": (
        "leave it out: one agent on each node starts --nproc-per-node workers, by default one for"
        " each GPU"
    ),
    "c cpus-per-task": "type --cpus-per-gpu N: a node's CPUs are those of all of its GPUs",
    "d": "type --directive=--dependency=VALUE",
    "e": "type --directive=--error=VALUE",
    "gres": "type --gpus-per-node VALUE",
    "mem": "type --memory-per-gpu SIZE, of which a node has one for each GPU, or --directive=--mem=VALUE",
    "mem-per-gpu": "type --memory-per-gpu VALUE",
    "o": "type --directive=--output=VALUE",
    "p": "type --partition VALUE",
    "q": "type --qos VALUE",
    "a": "type --directive=--array=VALUE",
    "wrap": "type SCRIPT and its arguments after the options",
}
"""sbatch(1); what is not here is typed as a directive."""

_AS_DIRECTIVE = (
    "begin bell chdir clusters comment cores-per-socket cpu-freq deadline exclude"
    " export export-file extra-node-info get-user-env gid gpu-bind gpus-per-socket gpus-per-task"
    " gres-flags hint hold licenses mail-type mail-user mem-bind mem-per-cpu mincpus network nice"
    " no-requeue nodefile nodelist open-mode overcommit oversubscribe power priority profile reboot"
    " reservation sockets-per-node spread-job switches threads-per-core thread-spec time-min tmp"
    " wait-all-nodes wckey w x D b k m M L s v"
)
"""Options of sbatch that clusterrun passes on as they are."""


def instead_of_option(name: str, value: str) -> str:
    """Return what to type in place of an option or a key of 0.1; "" if there was none of that name.

    ``name`` may have - or _, and ``value`` is what it was set to.
    """
    name = name.replace("_", "-")
    if name not in _OWN:
        return ""
    if name == "modules":
        value = value.replace(",", " ")
    elif name == "node-selector":
        value = value.replace("=", ": ").replace(",", ", ")
    elif name == "dependency" and ":" not in value:
        value = f"afterok:{value}"
    return _OWN[name].replace("VALUE", value)


def unknown_option(words: Sequence[str]) -> UsageError | None:
    """Return the error for an option that submit does not have; None if it is not known here.

    ``words`` are those of the command line from that option on.
    """
    typed, equals, value = words[0].partition("=")
    name = typed.lstrip("-").replace("_", "-")
    is_short = not typed.startswith("--")
    if is_short:
        # -p all, and -pall.
        name, value = name[:1], name[1:] or value
    if not value and not equals and len(words) > 1 and not words[1].startswith("-"):
        value = words[1]
    value = value or "VALUE"
    if not is_short and (instead := instead_of_option(name, value)):
        return UsageError(f"there is no option {typed} any more", instead)
    for names, hint in _OF_SBATCH.items():
        if name in names.split():
            number = value.removeprefix("gpu:") if name == "gres" else value
            return UsageError(
                f"there is no option {typed[:2] if is_short else typed}; sbatch has one",
                hint.replace("VALUE", number),
            )
    if name in _AS_DIRECTIVE.split():
        shown = typed[:2] if is_short else typed
        own = f"{'-' if is_short else '--'}{name}"
        line = own if value == "VALUE" else f"{own}{' ' if is_short else '='}{value}"
        return UsageError(
            f"there is no option {shown}; sbatch has one", f"type --directive={quote(line)}"
        )
    return None
