"""Which variables the imports of torch and of torch._dynamo read, in Python and in C.

Recorded with torch 2.13, by a class of ``os.environ`` and by a ``getenv`` of our own: about 55 in Python,
84 in C for torch. Neither reads CUDA_VISIBLE_DEVICES, NCCL_*, HF_* or WANDB_*.
"""

from __future__ import annotations

TORCH = "torch"
DYNAMO = "torch._dynamo"
"""torch imports it when the first optimizer or DistributedDataParallel is made."""

_OF_TORCH = (
    *("TORCH", "PYTORCH", "OMP_", "MKL", "KMP_", "GOMP_", "GOTO_", "OPENBLAS_", "NVPL_", "DNNL_"),
    *("ONEDNN_", "NUMPY_", "NPY_", "ATEN_", "C10_", "ACC_", "KINETO_", "FX_", "TQDM_", "LD_"),
    "COMPILE_STROBELIGHT",
)
_NOT_OF_TORCH = (
    *(
        "TORCHELASTIC_",
        "TORCH_NCCL_",
        "TORCH_HOME",
        "TORCH_EXTENSIONS_DIR",
        "TORCH_CUDA_ARCH_LIST",
        "TORCHINDUCTOR_CACHE",
    ),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_KERNEL_CACHE"),
)

_OF_THE_FOLLOWER = frozenset(
    (
        *("CI", "CXX", "HOME", "LNAME", "LOGNAME", "USER", "USERNAME", "SAGE_ROOT", "TMPDIR"),
        *("TEMP", "TMP", "LOG_AUTOTUNE_RESULTS", "LOG_TLPARSE", "UNSAFE_SKIP_FSDP_MODULE_GUARDS"),
    )
)
_BEGINNINGS_OF_THE_FOLLOWER = (
    *("TORCH", "PYTORCH", "AOT", "INDUCTOR", "PT2", "SYMPY", "MPMATH", "PYTHON", "_PYTHON"),
    *("TRITON", "CUTE", "CUTLASS", "PARTITIONER", "FAKE_", "ENABLE_", "DUMP_"),
)
_NOT_OF_THE_FOLLOWER = (
    *("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST"),
    *("TORCH_DISTRIBUTED_", "TORCH_CPP_", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "PYTHONHASHSEED"),
)


def torch_reads(variable: str) -> bool:
    """Tell whether the import of torch may read a variable."""
    return variable.startswith(_OF_TORCH) and not variable.startswith(_NOT_OF_TORCH)


def dynamo_reads(variable: str) -> bool:
    """Tell whether the import of the follower reads or sets a variable."""
    if variable.startswith(_NOT_OF_THE_FOLLOWER):
        return False
    return variable in _OF_THE_FOLLOWER or variable.startswith(_BEGINNINGS_OF_THE_FOLLOWER)
