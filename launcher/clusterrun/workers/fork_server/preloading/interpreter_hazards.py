"""Why workers can't be forked from this interpreter, whatever it imports."""

from __future__ import annotations

import os
import site
import sys

from ..this_process import status_of_this_process
from .module_files import is_of_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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


def has_threads() -> bool:
    return len(os.listdir("/proc/self/task")) > 1


def why_not_to_fork(environ: Mapping[str, str], *, had_threads: bool) -> str:
    """Return why workers can't be forked from this interpreter, or "".

    ``had_threads``: it had some before its guard was split off, a fork which threads don't survive.
    """
    for name, why in DANGEROUS_VARIABLES.items():
        if environ.get(name):
            return f"{name} is set: {why}"
    if sys.flags.no_site:
        return "Python was started with -S, and has not imported os"
    for name in DEBUGGERS:
        if name in sys.modules:
            return f"{name} is active"
    if had_threads or has_threads():
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


HARMLESS_MODULES = frozenset({"_virtualenv", "_distutils_hack", "apport_python_hook"})
"""Known to read no variable: of virtualenv, setuptools, and Ubuntu's crash reports."""

HARMLESS_FILES = frozenset({"a1_coverage.pth", "distutils-precedence.pth"})
"""Of coverage and setuptools; they read COVERAGE_PROCESS_* and SETUPTOOLS_USE_DISTUTILS only."""

READS_OR_PRINTS = (
    *("environ", "getenv", "exec(", "eval(", "open(", "compile(", "runpy", "ctypes", "subprocess"),
    *("__dict__", "getattr(", "os.system", "os.popen", "expandvars", "print(", "stdout"),
    *("exec_module", "load_module", "addsitedir", "multiprocessing", "os.exec", "os.spawn"),
    "fork(",
)
"""A text of Python without these words can't read a variable, run another text, or print."""


def unsafe_site_code() -> str:
    """Return which code could have read a variable of a worker; "" if none could.

    Python runs .pth files and sitecustomize before any script. They have run in the server, without
    the variables that differ by worker: if they could have read one, workers must run them themselves.
    """
    if not hasattr(site, "getsitepackages"):
        return "the environment has a site module of its own, made by virtualenv before version 20"
    for path, line in _lines_of_pth_files():
        if _reads_or_prints(line):
            return f"{path} may read a variable that differs by worker"
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if path and name not in ("__main__", "site") and _is_foreign(name, path):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError as error:
                return f"{path}, which ran before the script, can't be read: {error.strerror}"
            if not path.endswith(".py") or _reads_or_prints(text):
                return f"{path} may read a variable that differs by worker"
    return ""


def _lines_of_pth_files() -> Iterator[tuple[str, str]]:
    """Yield the lines of .pth files that Python executes: those that begin with ``import``."""
    folders = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    for folder in folders:
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".pth")]
        except OSError:
            continue
        for name in sorted(names):
            if name in HARMLESS_FILES:
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith(("import ", "import\t")):
                    yield path, line


def _is_foreign(name: str, path: str) -> bool:
    """Tell whether a module that is loaded is neither Python's own nor known to be harmless."""
    if name.partition(".")[0] in HARMLESS_MODULES or name.startswith("fork_server"):
        return False
    if name in ("sitecustomize", "usercustomize"):
        return True
    return not is_of_python(path)


def _reads_or_prints(text: str) -> bool:
    return any(word in text for word in READS_OR_PRINTS)
