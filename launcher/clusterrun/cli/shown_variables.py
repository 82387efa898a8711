"""The variables that a bug report shows: those that a job depends on, and no secret."""

import re
from collections.abc import Mapping

SHOWN = re.compile(
    r"(CLUSTERRUN|PET|NCCL|TORCH|TORCHELASTIC|GLOO|TP|UCX|OMP|MKL|KMP|GOMP|CUDA|NVIDIA|HIP|ROCR|"
    r"ZE|ASCEND|SLURMD?|PBS|LSB|FLUX|OMPI|PMI|PMIX|PYTHON|VIRTUAL|CONDA)_\w+"
    r"|(MASTER|RANK|WORLD|LOCAL|GROUP|NODE)_?\w*|PATH|PYTHONPATH|LD_\w+|TMPDIR|XDG_RUNTIME_DIR|"
    r"PYTHON\w+|LANG|LC_ALL|TERM|NO_COLOR"
)
"""Names that jobs, schedulers and libraries for training use. Others are not shown."""

_WITH_VALUE = re.compile(
    r"(CLUSTERRUN|PET|NCCL|GLOO|OMP|CUDA|HIP)_\w+|LD_LIBRARY_PATH|MASTER_(ADDR|PORT)"
    r"|((LOCAL|GROUP|NODE)_)?(RANK|WORLD_SIZE)|SLURMD?(_\w+)?_(NODELIST|NODENAME|IPADDR)"
)
"""Names whose values are shown. Of the others a value may be anything: a site puts secrets where it likes."""

_WITH_NUMBERS = re.compile(r"SLURM_\w+")
"""Names whose values are shown if they are numbers, such as ``8(x2)``."""

_NUMBERS = re.compile(r"[\d,()x-]+")

SECRET = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|JWT|SIGNATURE|(CLUSTERRUN|PET)_ENV|HOOK",
    re.IGNORECASE,
)
"""Parts of names whose values are left out all the same."""

_IN_AN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
"""A user and a password in an address."""

HIDDEN = "(left out)"


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that are shown, by name in order, without secrets."""
    return {
        name: _IN_AN_ADDRESS.sub(f"{HIDDEN}@", value) if _has_value(name, value) else HIDDEN
        for name, value in sorted(variables.items())
        if SHOWN.fullmatch(name)
    }


def _has_value(name: str, value: str) -> bool:
    if SECRET.search(name):
        return False
    has_numbers = _WITH_NUMBERS.fullmatch(name) and _NUMBERS.fullmatch(value)
    return bool(_WITH_VALUE.fullmatch(name) or has_numbers)
