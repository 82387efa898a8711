"""The variables that a bug report shows: those that a job depends on, and no secret."""

import re
from collections.abc import Mapping

SHOWN = re.compile(
    r"(CLUSTERRUN|PET|NCCL|TORCH|TORCHELASTIC|GLOO|TP|UCX|OMP|MKL|KMP|GOMP|CUDA|NVIDIA|HIP|ROCR|"
    r"ZE|ASCEND|SLURM|PBS|LSB|FLUX|OMPI|PMI|PMIX|PYTHON|VIRTUAL|CONDA)_\w+"
    r"|(MASTER|RANK|WORLD|LOCAL|GROUP|NODE)_?\w*|PATH|PYTHONPATH|LD_\w+|TMPDIR|XDG_RUNTIME_DIR|"
    r"PYTHON\w+|LANG|LC_ALL|TERM|NO_COLOR"
)
"""Names that jobs, schedulers and libraries for training use. Others are not shown."""

SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|JWT|SIGNATURE", re.IGNORECASE)
"""Parts of names whose values are left out."""

_IN_AN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
"""A user and a password in an address."""

HIDDEN = "(left out)"


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that are shown, by name in order, without secrets."""
    return {
        name: HIDDEN if SECRET.search(name) else _IN_AN_ADDRESS.sub(f"{HIDDEN}@", value)
        for name, value in sorted(variables.items())
        if SHOWN.fullmatch(name)
    }
