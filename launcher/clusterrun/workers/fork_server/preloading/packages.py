"""Packages that were compared under python, fork and spawn, and which of them are preloaded.

See docs/packages.md. A package that is in none of these tables ends the imports before the fork.
"""

from __future__ import annotations

import os

from .leading_imports import Import
from .module_files import file_of, is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .leading_imports import LeadingImports

WORTH_A_FORK = frozenset(
    (
        *("accelerate", "cloudpickle", "cv2", "datasets", "evaluate", "matplotlib", "numba"),
        *("numpy", "pandas", "peft", "scipy", "sklearn", "torch", "transformers"),
    )
)
"""Take 0.05 s or more to import. Without one of these, forking is not faster than spawning."""

SAME_AFTER_A_FORK = WORTH_A_FORK | frozenset(
    (
        *("PIL", "absl", "aiohttp", "click", "dill", "einops", "fsspec"),
        *(
            "gymnasium",
            "h5py",
            "huggingface_hub",
            "hydra",
            "joblib",
            "loguru",
            "networkx",
            "omegaconf",
        ),
        *(
            "optuna",
            "psutil",
            "pyarrow",
            "pydantic",
            "pytest",
            "requests",
            "rich",
            "safetensors",
            "sympy",
        ),
        *("tokenizers", "tqdm", "typer", "yaml"),
    )
)
"""Imported before workers are forked: a program finds the same state as if each worker had imported it."""

SAME_IF_IMPORTED_LATER = {
    **dict.fromkeys(
        ("lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics"),
        "it reads RANK when it is imported",
    ),
    **dict.fromkeys(("diffusers", "zarr"), "it reads all variables when it is imported"),
    **dict.fromkeys(("polars",), "it starts threads when it is imported"),
    **dict.fromkeys(("clearml",), "it makes a lock when it is imported"),
    **dict.fromkeys(("torch_geometric",), "it uses a GPU when it is imported"),
    **dict.fromkeys(
        ("boto3", "jax", "ray", "setproctitle", "wandb", "xgboost"),
        "it is about the process that imports it",
    ),
}
"""Left to the workers, with the reason. Imports after them may be preloaded."""

_OF_TORCHMETRICS = (
    *(Import("torch", ()), Import("scipy.signal", ()), Import("matplotlib.pyplot", ())),
    Import("transformers", ("AutoModel", "AutoTokenizer")),
)

BRINGS = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "torchmetrics"), _OF_TORCHMETRICS),
    "lightning_fabric": (Import("torch", ()),),
}
"""What such a package imports itself, if it is installed, of the verified list: two thirds of its time."""

PATCHES_OTHERS = dict.fromkeys(
    (
        *("comet_ml", "ddtrace", "elasticapm", "eventlet", "gevent", "newrelic"),
        *("opentelemetry", "sentry_sdk", "unsloth"),
    ),
    "it changes packages that are imported after it",
)

CONNECTS_TO_THE_OUTSIDE = dict.fromkeys(
    ("horovod", "mpi4jax", "mpi4py"), "it connects to the outside when it is imported"
)

UNKNOWN = "it is not on the list of packages that may be imported before a fork"

AUTO = "auto"


class Choice:
    """What is preloaded, in order, and what is left to each worker."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.followers: list[Import] = []
        """What is imported after all of these, and need not be."""
        self.left_out: list[tuple[str, str]] = []
        """Leading imports that each worker imports itself, each with the reason."""
        self.why_spawn = ""
        """Why a fork would not be faster; "" if it is."""
        self.stopped_by = ""
        """What ends the list of imports before the script ends, and why."""

    @property
    def is_known(self) -> bool:
        """Whether all of it is on the verified list."""
        return all(is_known(_package(wanted)) for wanted in self.imports)

    @property
    def names(self) -> list[str]:
        """The modules that are preloaded."""
        return [wanted.name for wanted in (*self.imports, *self.followers)]

    def stop(self, name: str, why: str) -> None:
        """Leave ``name``, and all that the script imports after it, to the workers."""
        self.left_out.append((f"{name} and what is imported after it", why))
        self.stopped_by = f"{name}: {why}"

    def keep_first(self, count: int, why: str) -> None:
        """Preload so many only: the next one uses a variable that differs by worker, says ``why``."""
        left = [*self.imports, *self.followers][count]
        and_others = "" if left in self.followers else " and what is imported after it"
        self.left_out.insert(0, (f"{left.name}{and_others}", why))
        del self.imports[count:]
        self.followers = []


def choose(preload: str | tuple[str, ...], reading: LeadingImports, workers: int) -> Choice:
    """Choose by ``preload``: ``auto``, ``none`` or the names of modules."""
    choice = Choice()
    if not isinstance(preload, str):
        choice.imports = [Import(name, ()) for name in preload]
    elif preload == AUTO:
        _choose_known(reading, choice)
        _prefer_spawn_where_it_is_as_fast(reading, choice, workers)
    return choice


def _choose_known(reading: LeadingImports, choice: Choice) -> None:
    for wanted in reading.found:
        package = _package(wanted)
        if is_known(package):
            choice.imports.append(wanted)
        elif package in SAME_IF_IMPORTED_LATER:
            choice.left_out.append((wanted.name, SAME_IF_IMPORTED_LATER[package]))
            choice.imports.extend(each for each in BRINGS.get(package, ()) if file_of(each.name))
        else:
            known = {**PATCHES_OTHERS, **CONNECTS_TO_THE_OUTSIDE}
            choice.stop(wanted.name, known.get(package, UNKNOWN))
            return
    if reading.imports_follow:
        where = os.path.basename(reading.stopped_at)
        choice.left_out.append((f"what is imported from {where} on", "that line may do anything"))
        choice.stopped_by = f"{where}: that line may do anything"


def _prefer_spawn_where_it_is_as_fast(
    reading: LeadingImports, choice: Choice, workers: int
) -> None:
    """Set ``why_spawn`` unless several workers share an import that takes time, or need none."""
    if workers == 1:
        choice.why_spawn = "a single worker shares its imports with no other"
    elif any(_package(wanted) in WORTH_A_FORK for wanted in choice.imports):
        return
    elif choice.stopped_by:
        choice.why_spawn = f"nothing that takes time is imported before {choice.stopped_by}"
    elif not reading.needs_only_python:
        choice.why_spawn = "nothing that takes time is among what the script imports first"
    else:
        # All that the script imports is imported too quickly for a process of its own.
        choice.imports = []


def is_known(package: str) -> bool:
    """Tell whether it is on the verified list, or comes with Python."""
    return package in SAME_AFTER_A_FORK or is_standard(package)


def _package(wanted: Import) -> str:
    return wanted.name.partition(".")[0]
