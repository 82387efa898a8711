"""The environment variables that the imports of torch and of torch._dynamo read, in Python and in C.

They were recorded with torch 2.13, with an instrumented ``os.environ`` and ``getenv``: about 55 in Python
and 84 in C for torch; those of the CUDA libraries with torch 2.15 for CUDA 13. Neither import reads
CUDA_VISIBLE_DEVICES, CUBLAS_WORKSPACE_CONFIG, NCCL_*, HF_* or WANDB_*.
"""

from __future__ import annotations

TORCH = "torch"
DYNAMO = "torch._dynamo"
"""Torch imports it when the first optimizer or DistributedDataParallel is made."""

_TORCH_PREFIXES = (
    *("TORCH", "PYTORCH", "OMP_", "MKL", "KMP_", "GOMP_", "GOTO_", "OPENBLAS_", "NVPL_", "DNNL_"),
    *("ONEDNN_", "NUMPY_", "NPY_", "ATEN_", "C10_", "ACC_", "KINETO_", "FX_", "TQDM_", "LD_"),
    *("CUBLAS_LOG", "CUBLASLT_", "NVRTC_", "COMPILE_STROBELIGHT"),
)
_READ_BY_NEITHER = (
    *("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST"),
)
_NOT_READ_BY_TORCH = (*_READ_BY_NEITHER, "TORCHINDUCTOR_CACHE", "PYTORCH_KERNEL_CACHE")

_DYNAMO_VARIABLES = frozenset(
    (
        *("CI", "CXX", "HOME", "LNAME", "LOGNAME", "USER", "USERNAME", "SAGE_ROOT", "TMPDIR"),
        *("TEMP", "TMP", "LOG_AUTOTUNE_RESULTS", "LOG_TLPARSE", "UNSAFE_SKIP_FSDP_MODULE_GUARDS"),
    )
)
_DYNAMO_PREFIXES = (
    *("TORCH", "PYTORCH", "AOT", "INDUCTOR", "PT2", "SYMPY", "MPMATH", "PYTHON", "_PYTHON"),
    *("TRITON", "CUTE", "CUTLASS", "PARTITIONER", "FAKE_", "ENABLE_", "DUMP_"),
)
_NOT_READ_BY_DYNAMO = (
    *(*_READ_BY_NEITHER, "TORCH_DISTRIBUTED_", "TORCH_CPP_", "PYTHONHASHSEED"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
)


def torch_reads(variable: str) -> bool:
    """Tell whether the import of torch may read a variable."""
    return variable.startswith(_TORCH_PREFIXES) and not variable.startswith(_NOT_READ_BY_TORCH)


def dynamo_reads(variable: str) -> bool:
    """Tell whether the import of torch._dynamo may read or set a variable."""
    if variable.startswith(_NOT_READ_BY_DYNAMO):
        return False
    return variable in _DYNAMO_VARIABLES or variable.startswith(_DYNAMO_PREFIXES)
