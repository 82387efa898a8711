"""Packages that were compared under python, fork and spawn, and which of them are preloaded.

See docs/binding.md. What a script imports after a package that is in none of these tables is left to
the workers, except torch.
"""

from __future__ import annotations


class Import:
    """One import of a module: ``from NAME import NAMES``, or ``import NAME``; NAME is absolute."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
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
"""Take 0.05 s or more to import. Without one of these, forking is not faster than spawning."""

FORK_SAFE = SLOW_TO_IMPORT | frozenset(
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
        "it is about the process that imports it",
    ),
}
"""Left to the workers, with the reason. Imports after them may be preloaded."""

_OF_TORCHMETRICS = (
    *(Import("torch", ()), Import("scipy.signal", ()), Import("matplotlib.pyplot", ())),
    Import("transformers", ("AutoModel", "AutoTokenizer")),
)

ALSO_IMPORTS = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "torchmetrics"), _OF_TORCHMETRICS),
    "lightning_fabric": (Import("torch", ()),),
}
"""What such a package imports itself, if it is installed, of the verified list: two thirds of its time."""

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

UNKNOWN = "it is not on the list of packages that may be imported before a fork"
