"""Packages that were compared under python, fork and spawn, and which of them are preloaded.

See docs/binding.md. After an import of a package that is in none of these tables, only torch is preloaded.
"""

from __future__ import annotations


class Import:
    """``from NAME import NAMES``, or ``import NAME`` without names; NAME is absolute."""

    def __init__(self, name: str, names: tuple[str, ...] = ()) -> None:
        self.name = name
        self.names = names

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.name.partition(".")[0]


SLOW_TO_IMPORT = frozenset(
    (
        *("accelerate", "cloudpickle", "cv2", "datasets", "evaluate", "matplotlib", "numba"),
        *("numpy", "pandas", "peft", "scipy", "sklearn", "torch", "transformers"),
    )
)
"""Their imports take 0.05 s or more. Without one of these, forking is not faster than spawning."""

FORK_SAFE = SLOW_TO_IMPORT | frozenset(
    (
        *("PIL", "absl", "aiohttp", "click", "dill", "einops", "fsspec", "gymnasium", "h5py"),
        *("huggingface_hub", "hydra", "joblib", "loguru", "networkx", "omegaconf", "optuna"),
        *("psutil", "pyarrow", "pydantic", "pytest", "requests", "rich", "safetensors", "sympy"),
        *("tokenizers", "tqdm", "typer", "yaml"),
    )
)
"""A program finds the same state whether they are imported before the fork or by each worker."""

LEFT_TO_WORKERS = {
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
        "its state belongs to the process that imports it",
    ),
}
"""Packages that each worker imports itself, with the reason. Imports after them may be preloaded."""

_BY_TORCHMETRICS = (
    *(Import("torch"), Import("scipy.signal"), Import("matplotlib.pyplot")),
    Import("transformers", ("AutoModel", "AutoTokenizer")),
)

ALSO_IMPORTS = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "torchmetrics"), _BY_TORCHMETRICS),
    "lightning_fabric": (Import("torch"),),
}
"""Verified packages that these import, if installed: preloading them saves two thirds of the time."""

ENDS_PRELOADING = {
    **dict.fromkeys(
        (
            *("comet_ml", "ddtrace", "elasticapm", "eventlet", "gevent", "newrelic"),
            *("opentelemetry", "sentry_sdk", "unsloth"),
        ),
        "it changes packages that are imported after it",
    ),
    **dict.fromkeys(
        ("horovod", "mpi4jax", "mpi4py"), "it connects to the outside when it is imported"
    ),
    **dict.fromkeys(("isaacgym", "isaacsim", "omni"), "it must be imported before torch"),
    **dict.fromkeys(("dask", "lightgbm"), "it loads other modules or libraries after torch"),
}
"""Nothing that a script imports after one of these is imported before the fork."""

NOT_LISTED = "it is not on the list of packages that may be imported before a fork"
