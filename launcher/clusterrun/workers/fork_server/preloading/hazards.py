"""Finds out why workers can't be forked from this interpreter, before and after imports."""

from __future__ import annotations

import _signal as signal
import os
import site
import sys

from ..kernel import affinity, children_of, flush_all, status_field, text_of, tracer_of
from .module_files import is_stdlib_path
from .torch_variables import dynamo_reads

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


def why_not_to_fork(
    environ: Mapping[str, str], *, had_threads: bool, trusts_site_code: bool
) -> str | None:
    """Return why workers can't be forked from this interpreter before it has imported anything, if so.

    Args:
        environ: its variables.
        had_threads: it had threads before the guard forked it; they don't survive that.
        trusts_site_code: the code that Python runs before any script is not checked.

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
    return why_traced() or (None if trusts_site_code else unsafe_site_code())


def why_traced() -> str | None:
    """Return what traces this interpreter, if anything."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or a profiler is active"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for number in range(6):
            tool = monitoring.get_tool(number)
            if tool is not None:
                return f"{tool} is active"
    pid = tracer_of("self")
    return f"process {pid} traces this one" if pid else None


HARMLESS_MODULES = frozenset({"_virtualenv", "_distutils_hack", "apport_python_hook"})
"""Modules of virtualenv, setuptools and Ubuntu's crash reports; they read no variable."""

HARMLESS_FILES = frozenset({"a1_coverage.pth", "distutils-precedence.pth"})
"""Files of coverage and setuptools; they read only COVERAGE_PROCESS_* and SETUPTOOLS_USE_DISTUTILS."""

_NAMESPACE_CODE = "m.__dict__.setdefault('__path__',[])"
"""Part of each line of ``*-nspkg.pth``, which setuptools writes for a package in several folders."""

READS_OR_PRINTS = (
    *("environ", "getenv", "exec(", "eval(", "open(", "compile(", "runpy", "ctypes", "subprocess"),
    *("__dict__", "getattr(", "os.system", "os.popen", "expandvars", "print(", "stdout"),
    *("exec_module", "load_module", "addsitedir", "multiprocessing", "os.exec", "os.spawn"),
    "fork(",
)
"""Python code without these words can't read a variable, run other code, or print."""


TRUSTED = "CLUSTERRUN_TRUSTED_SITE_FILES"
"""A variable with the paths, separated by colons, of files that are not checked."""


def unsafe_site_code() -> str | None:
    """Return which code that ran before the script could have read a variable of a worker, if any could.

    Python runs .pth files and sitecustomize before any script. In the server they have run without the
    variables that differ between workers. If they could have read one, workers must run them again.
    """
    if not hasattr(site, "getsitepackages"):
        return "the environment has a site module of its own, made by virtualenv before version 20"
    trusted = os.environ.get(TRUSTED, "").split(":")
    for path, line in _lines_of_pth_files():
        if path not in trusted and _reads_or_prints(line.replace(_NAMESPACE_CODE, "")):
            return _may_read(path)
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if path not in ("", *trusted) and _must_be_checked(name, path):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError as error:
                return f"{path}, which ran before the script, can't be read: {error.strerror}"
            if not path.endswith(".py") or _reads_or_prints(text):
                return _may_read(path)
    return None


def _may_read(path: str) -> str:
    return (
        f"{path} may read a variable that differs between workers; if it does not, use"
        f" --preload torch, or {TRUSTED}={path}"
    )


def _lines_of_pth_files() -> Iterator[tuple[str, str]]:
    """Yield the lines of .pth files that Python executes, which begin with ``import``, with their files."""
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


def _must_be_checked(name: str, path: str) -> bool:
    """Tell whether an imported module is neither Python's own nor known to be harmless."""
    if name in ("__main__", "site") or name.startswith("fork_server"):
        return False
    if name.partition(".")[0] in HARMLESS_MODULES:
        return False
    if name in ("sitecustomize", "usercustomize"):
        return True
    return not is_stdlib_path(path)


def _reads_or_prints(text: str) -> bool:
    return any(word in text for word in READS_OR_PRINTS)


DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/xpu")

_LIBC_SIGNALS = 0b11 << 31
"""Signals 32 and 33, which the C library uses for its threads (nptl(7))."""

_MODE_OF_MKDTEMP = 0o40700
"""A folder (S_IFDIR) that only its owner may use."""

RESTARTED_THREADS = frozenset({"jemalloc_bg_thd"})
"""Names of threads that their library (jemalloc) starts again in a forked child."""


class ProcessState:
    """The state of this process before it imports anything: imports must not change it."""

    def __init__(self) -> None:
        self._descriptors = frozenset(_descriptors())
        self._shared = frozenset(_memory_shared_with_children())
        self._properties = list(_properties())
        self._variables = dict(os.environ)

    def change(self) -> str | None:
        """Return a change since ``__init__`` that a fork would break, if there is one."""
        opened = [path for name, path in _descriptors().items() if name not in self._descriptors]
        # Devices first, although a driver opens other descriptors before its device.
        for path in (*opened, *_mapped_paths()):
            if path.startswith(DEVICES):
                return f"a module uses a GPU ({path})"
        if opened:
            return f"a module left {opened[0]} open"
        for shared in _memory_shared_with_children():
            if shared not in self._shared:
                return f"a module made memory or a lock that all ranks would share ({shared})"
        folder = self._temporary_folder()
        if folder:
            return f"a module made a folder that all ranks would share ({folder})"
        children = children_of(os.getpid())
        if children:
            return f"a module started process {children[0]}"
        for (name, before), (_, now) in zip(self._properties, _properties()):
            if before != now:
                return f"a module changed {name}"
        return why_traced() or _thread_or_gpu_context()

    def _temporary_folder(self) -> str | None:
        """Return a new variable with a folder that ``mkdtemp`` has made, if there is one.

        The first rank to end may remove it, as with matplotlib's MPLCONFIGDIR.
        """
        # None if no module has asked where temporary files belong.
        root = getattr(sys.modules.get("tempfile"), "tempdir", None)
        for name, value in os.environ.items():
            is_new = bool(root) and self._variables.get(name) != value
            # That of torch, TORCHINDUCTOR_CACHE_DIR, is the same in all processes of a user.
            if is_new and value.startswith(f"{root}{os.sep}") and not dynamo_reads(name):
                try:
                    mode = os.stat(value).st_mode
                except OSError:
                    continue
                if mode == _MODE_OF_MKDTEMP:
                    return f"{name}={value}"
        return None


def _properties() -> Iterator[tuple[str, object]]:
    yield "the current directory", os.getcwd()
    yield "the umask", status_field("self", "Umask")
    yield "its limits", text_of("/proc/self/limits")
    yield "the CPUs that it may use", affinity()
    for number in signal.valid_signals():
        yield f"the handler of signal {int(number)}", signal.getsignal(number)
    for key in ("SigCgt", "SigIgn", "SigBlk"):
        mask = int(status_field("self", key) or "0", 16)
        yield "the signals it catches", (key, mask & ~_LIBC_SIGNALS)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        yield "its timers", signal.getitimer(timer) == (0.0, 0.0)


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def _mapped_paths() -> Iterator[str]:
    for line in text_of("/proc/self/maps").splitlines():
        if "/" in line:
            yield line[line.find("/") :]


def _memory_shared_with_children() -> Iterator[str]:
    """Yield the shared writable mappings (proc(5)), as made by ``multiprocessing.Lock`` and ``mmap(-1)``."""
    for line in text_of("/proc/self/maps").splitlines():
        addresses, permissions, _offset, _device, _inode, *path = line.split(None, 5)
        if permissions[1] == "w" and permissions[3] == "s":
            yield " ".join([addresses, *path])


def _thread_or_gpu_context() -> str | None:
    """Return a thread or a GPU context that this process has even after a fork, if there is one.

    OpenBLAS and similar libraries end their threads before a fork and start them again when needed.
    """
    flush_all()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # It is true only if a context exists, which a forked child could not use.
    for name in ("torch.cuda", "torch.xpu"):
        is_initialized = getattr(sys.modules.get(name), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return "a module uses a GPU"
    own = str(os.getpid())
    for thread in os.listdir("/proc/self/task"):
        if thread != own:
            name = text_of(f"/proc/self/task/{thread}/comm").strip()
            if name not in RESTARTED_THREADS:
                return f"a module started a thread ({name})"
    return None
