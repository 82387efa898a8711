"""Packages that were compared under python, fork and spawn: see docs/packages.md.

A package that is in none of these tables ends the imports before the fork.
"""

from __future__ import annotations

WORTH_A_FORK = frozenset(
    (
        *("accelerate", "cv2", "datasets", "evaluate", "matplotlib", "numba", "numpy", "pandas"),
        *("peft", "scipy", "sklearn", "torch", "transformers"),
    )
)
"""Take 0.1 s or more to import. Without one of these, forking is not faster than spawning."""

SAME_AFTER_A_FORK = WORTH_A_FORK | frozenset(
    (
        *("PIL", "absl", "aiohttp", "click", "cloudpickle", "dill", "einops", "fsspec"),
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

PATCHES_OTHERS = dict.fromkeys(
    (
        *("comet_ml", "ddtrace", "elasticapm", "eventlet", "gevent", "newrelic"),
        *("opentelemetry", "sentry_sdk", "unsloth"),
    ),
    "it changes packages that are imported after it",
)

NEVER_TRIED = dict.fromkeys(
    ("horovod", "mpi4jax", "mpi4py"), "it connects to the outside when it is imported"
)
