"""What makes an interpreter none to fork workers from, whatever it imports: each reason in words."""

from __future__ import annotations

import os
import sys

from ..system.other_processes import status_of_this_process
from .site_code import what_site_code_may_read

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
        "the interpreter itself is being looked at",
    ),
}
DEBUGGERS = ("pydevd", "_pydevd_bundle", "debugpy", "coverage", "pyinstrument", "scalene")


def why_not_to_fork(environ: Mapping[str, str]) -> str:
    """Return why this interpreter is none to fork from; "" if it is one."""
    for name, why in DANGEROUS_VARIABLES.items():
        if environ.get(name):
            return f"{name} is set: {why}"
    if sys.flags.no_site:
        return "Python was started with -S, and has not imported os"
    for name in DEBUGGERS:
        if name in sys.modules:
            return f"{name} is at work"
    if len(os.listdir("/proc/self/task")) > 1:
        return "something started a thread"
    return tracer() or what_site_code_may_read()


def tracer() -> str:
    """Return who looks at this interpreter while it runs; "" if nobody does."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or a profiler is at work"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for number in range(6):
            tool = monitoring.get_tool(number)
            if tool is not None:
                return f"{tool} is at work"
    traced_by = status_of_this_process("TracerPid")
    if traced_by not in ("0", ""):
        return f"process {traced_by} traces this one"
    return ""
