"""Why workers can't be forked from this interpreter, whatever it imports."""

from __future__ import annotations

import os
import sys

from ..system.this_process import status_of_this_process
from .site_code import unsafe_site_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DANGEROUS_VARIABLES = {
    **dict.fromkeys(
        ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
        "libraries bind threads when they are loaded, before the worker is bound",
    ),
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), "a library is injected"),
    **dict.fromkeys(("COVERAGE_PROCESS_START", "COV_CORE_SOURCE"), "coverage is measured"),
    **dict.fromkeys(
        (
            *("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONDUMPREFS"),
            *("PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHONMALLOCSTATS"),
            *("PYTHON_PERF_JIT_SUPPORT",),
        ),
        "the interpreter itself is measured",
    ),
}
DEBUGGERS = ("pydevd", "_pydevd_bundle", "debugpy", "coverage", "pyinstrument", "scalene")


def why_not_to_fork(environ: Mapping[str, str]) -> str:
    """Return why workers can't be forked from this interpreter, or ""."""
    for name, why in DANGEROUS_VARIABLES.items():
        if environ.get(name):
            return f"{name} is set: {why}"
    if sys.flags.no_site:
        return "Python was started with -S, and has not imported os"
    for name in DEBUGGERS:
        if name in sys.modules:
            return f"{name} is active"
    if len(os.listdir("/proc/self/task")) > 1:
        return "something started a thread"
    return tracer() or unsafe_site_code()


def tracer() -> str:
    """Return what traces this interpreter, or ""."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or a profiler is active"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for number in range(6):
            tool = monitoring.get_tool(number)
            if tool is not None:
                return f"{tool} is active"
    traced_by = status_of_this_process("TracerPid")
    if traced_by not in ("0", ""):
        return f"process {traced_by} traces this one"
    return ""
