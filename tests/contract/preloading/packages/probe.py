"""Writes down what a program finds in its process after its imports, by name.

The test puts the name of a package in the place of PACKAGE. A fact that begins with "each" differs
from rank to rank.
"""

import PACKAGE
import torch

import asyncio
import atexit
import builtins
import codecs
import ctypes
import decimal
import faulthandler
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import types
import uuid
import warnings

NAME = "PACKAGE"
TOP = NAME.split(".")[0]
SIMPLE = (bool, int, float, str, bytes, type(None))


def later(name):
    """Import a module, but not by a statement: it is no import of the script that is compared."""
    return importlib.import_module(name)


def name_of(thing):
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        found.append((int(name), path.split(":")[0]))
    return sorted(found)


def status(*keys):
    with open("/proc/self/status") as file:
        found = [int(line.split(":")[1], 16) for line in file if line.split(":")[0] in keys]
    # 32 and 33 are the C library's; SIGQUIT prints stacks in every worker.
    return [f"{mask & ~(0b11 << 31 | 1 << signal.SIGQUIT - 1):x}" for mask in found]


def shared_memory():
    with open("/proc/self/maps") as maps:
        lines = [line.split(None, 5) for line in maps]
    shared = sorted(line[5].strip() for line in lines if line[1][1] + line[1][3] == "ws")
    # A forked worker has one such mapping of the launcher's.
    return [path for path in shared if path != "/dev/zero (deleted)"]


def libraries():
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
    return sorted({os.path.basename(path) for path in paths})


def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            names.append(comm.read().strip())
    # tokio starts one of its own when it has work; jemalloc starts its own again.
    tokio = {"tokio-rt-worker"} & set(names)
    others = (name for name in names if name not in {"jemalloc_bg_thd", *tokio})
    return sorted([*others, *tokio])


def stream(one):
    return (
        one.encoding,
        one.errors,
        one.line_buffering,
        one.write_through,
        one.isatty(),
        one.mode,
        one.name,
    )


def texts(values):
    return sorted(repr(value) for value in values)


def is_address(value):
    return type(value) is int and value >= 1 << 40


def simple_globals():
    """Return the simple values in the package's modules: what it keeps of the process, if anything."""
    found = {}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == TOP:
            for name, value in sorted(getattr(module, "__dict__", {}).items()):
                if type(value) in SIMPLE and not name.startswith("__") and not is_address(value):
                    found[f"{module_name}.{name}"] = repr(value)[:200]
    return found


def c_environment(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name)


def fingerprint_of_map():
    """Return how datasets names what a function of this script makes: ranks share the file."""
    datasets = later("datasets")
    data = datasets.Dataset.from_dict({"x": [1, 2]})
    return data.map(lambda row: {"y": is_address(row["x"])})._fingerprint


def facts():
    numpy, torch = later("numpy"), later("torch")
    yield "arguments", sys.argv
    yield "original arguments", getattr(sys, "orig_argv", [])[1:]
    yield "search path", sys.path
    yield "flags", str(sys.flags)
    yield "warning filters", texts(warnings.filters)
    yield "logging level", logging.root.level
    yield "logging handlers", [name_of(type(handler)) for handler in logging.root.handlers]
    yield "loggers", sorted(vars(logging.root.manager)["loggerDict"])
    yield (
        "signal handlers",
        [
            (
                int(n),
                name_of(signal.getsignal(n))
                if callable(signal.getsignal(n))
                else signal.getsignal(n),
            )
            for n in signal.valid_signals()
        ],
    )
    yield "signal masks", status("SigBlk", "SigIgn", "SigCgt")
    yield "descriptors", descriptors()
    yield "threads", threads()
    yield "python threads", sorted(thread.name for thread in threading.enumerate())
    yield (
        "children",
        []
        if not os.path.exists("/proc/self/task")
        else open(f"/proc/self/task/{os.getpid()}/children").read().split().__len__(),
    )
    yield "folder", os.getcwd()
    yield "umask", oct(os.umask(os.umask(0o077)))
    yield "limits", [resource.getrlimit(n) for n in range(16)]
    yield "cpus", sorted(os.sched_getaffinity(0))
    yield "nice", os.nice(0)
    yield (
        "environment",
        sorted(
            (k, v)
            for k, v in os.environ.items()
            if k not in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
        ),
    )
    yield (
        "environment of C",
        [c_environment(name) for name in (b"RANK", b"OMP_NUM_THREADS", b"KMP_DUPLICATE_LIB_OK")],
    )
    yield "locale", locale.setlocale(locale.LC_ALL)
    yield "time zone", time.tzname
    yield "decimal", str(decimal.getcontext())
    yield "temporary folder", tempfile.gettempdir()
    yield "start method", multiprocessing.get_start_method(allow_none=True)
    yield "main", sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("__"))
    yield (
        "main's name",
        (__name__, __file__, __spec__, sys.modules["__main__"].__dict__ is globals()),
    )
    for which in ("stdin", "stdout", "stderr"):
        yield which, stream(getattr(sys, which))
    yield (
        "hooks",
        [
            name_of(hook)
            for hook in (
                sys.excepthook,
                sys.displayhook,
                sys.unraisablehook,
                sys.breakpointhook,
                threading.excepthook,
            )
        ],
    )
    yield (
        "finders",
        [name_of(finder if isinstance(finder, type) else type(finder)) for finder in sys.meta_path],
    )
    yield "path hooks", len(sys.path_hooks)
    yield "builtins", sorted(set(vars(builtins)))
    yield "modules", sorted(name for name in sys.modules if "fork_server" not in name)
    yield (
        "kinds of modules",
        sorted({name_of(type(module)) for module in list(sys.modules.values())}),
    )
    yield "type of sys", name_of(type(sys))
    yield "collector", (gc.isenabled(), gc.get_threshold(), gc.callbacks.__len__())
    yield "recursion", (sys.getrecursionlimit(), sys.getswitchinterval())
    yield "tracers", (sys.gettrace(), sys.getprofile())
    # Written so, it is no reason to leave out what a package imports later.
    yield "exit functions", vars(atexit)["_ncallbacks"]()
    yield "faulthandler", faulthandler.is_enabled()
    yield (
        "event loop policy",
        name_of(type(asyncio.get_event_loop_policy())) if sys.version_info < (3, 14) else "",
    )
    yield "error handlers of codecs", name_of(codecs.lookup_error("strict"))
    yield "shared memory", shared_memory()
    yield "libraries", libraries()
    yield "torch threads", (torch.get_num_threads(), torch.get_num_interop_threads())
    yield "torch types", str(torch.get_default_dtype())
    yield (
        "torch deterministic",
        (torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()),
    )
    yield "numpy errors", numpy.geterr()
    yield "numpy printing", str(numpy.get_printoptions())
    yield "version", str(getattr(sys.modules[TOP], "__version__", ""))
    for name, value in simple_globals().items():
        yield f"value {name}", value
    yield "each process", os.getpid() != 0 and os.environ["RANK"]
    yield "each random", random.random()
    yield "each numpy", numpy.random.rand()
    yield "each torch", torch.rand(1).item()
    yield "each uuid", str(uuid.uuid4())
    yield "each temporary name", next(tempfile._get_candidate_names())
    yield "each key", bytes(multiprocessing.current_process().authkey).hex()
    yield "kind of functions", isinstance(facts, types.FunctionType)
    if TOP == "datasets":
        yield "fingerprint of a map", fingerprint_of_map()


with open(os.environ["PROBE_FILE"] + os.environ["RANK"], "w") as file:
    json.dump({name: repr(value) for name, value in facts()}, file)
