"""Regression tests for faults of forked workers."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.contract.launched import Ended, Launcher
from tests.workers.interpreters import environment_without_pth

SPAWNED = "clusterrun: workers are spawned: "

FORK = "--start-method=fork"


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter without .pth files, in a folder with the name of a package."""
    folder = tmp_path_factory.mktemp("clean") / "torch" / "environment"
    folder.parent.mkdir()
    return environment_without_pth(sys.executable, folder)


def install(clusterrun: Launcher, name: str, code: str) -> dict[str, str]:
    """Install a module; return the variables with which it is found."""
    folder = clusterrun.folder / "site-packages"
    # As in any environment: Python must not change the folder when it runs.
    (folder / "__pycache__").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(dedent(code))
    return {"PYTHONPATH": str(folder)}


def lines_by_rank(ended: Ended) -> list[str]:
    """Return the lines that workers have printed, in order of the ranks."""
    return [line.split("] ", 1)[1] for line in sorted(ended.out.splitlines())]


FIRST_STATEMENTS = {
    "variable": "import os; os.environ['TOKENIZERS_PARALLELISM'] = 'false'",
    "print": "print('begins')",
    "sys": "import sys",
    "nothing": "",
}


@pytest.mark.long
@pytest.mark.parametrize("first", FIRST_STATEMENTS)
def test_first_statement_before_torch(clusterrun: Launcher, clean_python: str, first: str) -> None:
    """In a clean environment nothing has imported ``types`` before torch."""
    script = f"{FIRST_STATEMENTS[first]}\nimport torch, sys\nprint(type(sys).__name__, type(torch))"

    ended = clusterrun.script(script, "--python", clean_python, workers=2).ended(100)

    assert ended.code == 0, ended.err
    assert lines_by_rank(ended).count("module <class 'module'>") == 2


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_signal_handler_raises_during_gloo_wait(clusterrun: Launcher, method: str) -> None:
    """It runs when the other rank has exited; the rank fails with exit code 1."""
    ended = clusterrun.script(
        """
        import torch
        import torch.distributed as dist
        import os
        import signal
        import time

        def handler(number, frame):
            raise ValueError("of the handler")

        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            dist.barrier()
        time.sleep(1)
        """,
        *("--start-method", method),
        workers=2,
    ).ended(100)

    assert ended.code == 1
    assert "ValueError: of the handler" in ended.err
    assert "clusterrun: exit code 1, from rank 0" in ended.err


PICKLERS = ("cloudpickle", "dill")


@pytest.mark.parametrize("pickler", PICKLERS)
def test_pickled_function_that_uses_sys(clusterrun: Launcher, pickler: str) -> None:
    """Datasets, joblib and vectorized environments pickle them for their processes."""
    ended = clusterrun.script(
        f"""
        import numpy
        import sys
        import {pickler}

        def function():
            return sys.byteorder

        print({pickler}.loads({pickler}.dumps(function))() == sys.byteorder)
        """,
        "--start-method=fork",
    ).ended()

    assert (ended.code, ended.out) == (0, "True\n"), ended.err


def test_deep_exception_is_freed(clusterrun: Launcher) -> None:
    """A hundred caught exceptions, with 1 MB each."""
    ended = clusterrun.script(
        """
        import numpy
        import resource

        def deep(n, held):
            if n:
                return deep(n - 1, held)
            raise ValueError(held)

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        before = peak()
        for _ in range(100):
            try:
                deep(200, bytearray(1 << 20))
            except ValueError:
                pass
        print("grown by", peak() - before)
        """,
        "--start-method=fork",
    ).ended()

    assert ended.code == 0, ended.err
    assert int(ended.out.split()[-1]) < 30


KEEPS_FILES = """
    import gzip

    class Keeper:
        files = []

        def __init__(self, name):
            self.name, self.files = name, Keeper.files

        def open(self):
            self.file = gzip.open(self.name, "wt")
            self.text = open(self.name + ".txt", "w")
            self.files.append(self)

    KEEPER = Keeper("kept.gz")
"""

ENDS_WITH_OPEN_FILES = {
    "installed_module": ("import keeps\nkeeps.KEEPER.open()\n", ""),
    "main": ("import keeps\nkeeper = keeps.Keeper('kept.gz')\nkeeper.open()\n", ""),
    "daemon_thread": (
        "import keeps, threading, time\nkeeper = keeps.Keeper('kept.gz')\nkeeper.open()\n",
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    ),
    "failure": ("import keeps\nkeeps.KEEPER.open()\n", "raise SystemExit(5)\n"),
}


@pytest.mark.parametrize("how", ENDS_WITH_OPEN_FILES)
@pytest.mark.parametrize("preload", ["numpy,keeps", pytest.param("auto", marks=pytest.mark.long)])
def test_open_files_are_flushed(clusterrun: Launcher, how: str, preload: str) -> None:
    """Even those that a class of a preloaded module refers to."""
    environ = install(clusterrun, "keeps", KEEPS_FILES)
    opens, ends = ENDS_WITH_OPEN_FILES[how]
    writes = "for k in keeps.Keeper.files: k.file.write('some text'); k.text.write('a text')\n"
    script = "import numpy\n" + opens + writes + ends

    ended = clusterrun.script(
        script, "--start-method=fork", f"--preload={preload}", environ=environ
    ).ended()

    assert ended.code == (5 if how == "failure" else 0), ended.err
    unpacked = subprocess.run(
        ["gzip", "-dc", clusterrun.folder / "kept.gz"], capture_output=True, timeout=30, check=False
    )
    assert (unpacked.returncode, unpacked.stdout) == (0, b"some text")
    assert (clusterrun.folder / "kept.gz.txt").read_text() == "a text"


@pytest.mark.parametrize(("module", "is_frozen"), [("a_module", True), ("nanobind", False)])
def test_modules_of_nanobind_are_freed(
    clusterrun: Launcher, module: str, *, is_frozen: bool
) -> None:
    """Triton's, with torch 2.15, prints hundreds of lines about what it leaks otherwise."""
    script = f"""
    import atexit, gc, numpy
    metaclass = type("nb_meta", (type,), {{"__module__": "{module}"}})
    atexit.register(lambda: print(gc.get_freeze_count() > 0))
    """

    ended = clusterrun.script(script, "--start-method=fork").ended()

    assert (ended.code, ended.out) == (0, f"{is_frozen}\n"), ended


LIBRARY = """
    #include <stdio.h>
    #include <stdlib.h>
    static void by_atexit(void) { puts("atexit"); }
    __attribute__((constructor)) static void load(void) { atexit(by_atexit); }
    __attribute__((destructor)) static void unload(void) { puts("destructor"); }
"""


@pytest.mark.long
def test_exit_handlers_of_c_libraries(clusterrun: Launcher, clean_python: str) -> None:
    """Exit handlers and destructors of a library loaded after torch, in a folder named torch."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = clusterrun.folder / "ends.c", clusterrun.folder / "libends.so"
    source.write_text(dedent(LIBRARY))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=30)

    ended = clusterrun.script(
        f"import torch, ctypes\nctypes.CDLL({str(library)!r})",
        *("--start-method=fork", "--python", clean_python),
    ).ended(100)

    assert (ended.code, sorted(ended.out.split())) == (0, ["atexit", "destructor"]), ended.err


def test_exit_of_child_is_not_the_workers(clusterrun: Launcher) -> None:
    """The child also reaches the end of the script; the worker is killed later, and that is reported."""
    ended = clusterrun.script(
        """
        import numpy
        import os
        import signal
        import sys

        child = os.fork()
        if child == 0:
            sys.exit(3)
        os.waitpid(child, 0)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        "--start-method=fork",
        workers=1,
    ).ended()

    assert ended.code == 128 + signal.SIGKILL
    assert "SIGKILL" in ended.err
    assert "exit code 3" not in ended.err


@pytest.mark.parametrize("how", ["pth", "sitecustomize", "helper"])
def test_site_code_sees_the_rank(clusterrun: Launcher, tmp_path: Path, how: str) -> None:
    """A .pth file, sitecustomize or their imports may choose a device by LOCAL_RANK."""
    python = environment_without_pth(sys.executable, tmp_path / "environment")
    site_packages = next((tmp_path / "environment/lib").glob("python3*")) / "site-packages"
    # Debian's Python has a sitecustomize of its own, which comes before one in site-packages.
    first = tmp_path / "first"
    first.mkdir()
    code = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = os.environ.get('LOCAL_RANK', 'none')\n"
    if how == "pth":
        (site_packages / "devices.pth").write_text(code)
    elif how == "sitecustomize":
        (first / "sitecustomize.py").write_text(code)
    else:
        (first / "sitecustomize.py").write_text("import devices_by_rank\n")
        (site_packages / "devices_by_rank.py").write_text(code)

    ended = clusterrun.script(
        "import numpy, os; print('device', os.environ['CUDA_VISIBLE_DEVICES'])",
        *("-v", "--python", python, "--env", f"PYTHONPATH={first}"),
        workers=2,
    ).ended()

    assert lines_by_rank(ended) == ["device 0", "device 1"]
    assert SPAWNED in ended.err
    assert "may read a variable that differs between workers" in ended.err


KEEPS_THE_PROCESS = """
    import multiprocessing, os, posix, random, sys
    from sys import argv

    LOCK = multiprocessing.Lock()
    PID, SEED, DATA = os.getpid(), random.getrandbits(64), os.environ._data
    ARGV, OLD = argv, posix.environ
"""


@pytest.mark.parametrize("package", ["numpy", "unknown"])
def test_stored_state_belongs_to_the_worker(clusterrun: Launcher, package: str) -> None:
    """For a module with the name of a known package, and of an unknown one."""
    environ = install(clusterrun, package, KEEPS_THE_PROCESS)
    script = f"""
        import {package} as kept
        import os, sys
        print("pid", kept.PID == os.getpid())
        print("rank", kept.DATA[b"RANK"] == kept.OLD[b"RANK"] == os.environb[b"RANK"])
        print("arguments", kept.ARGV is sys.argv, sys.argv[-1] == "--local-rank=" + os.environ["RANK"])
        print("seed", kept.SEED)
        print("lock", kept.LOCK.acquire(timeout=1))
    """

    ended = clusterrun.script(script, "--pass-local-rank", workers=2, environ=environ).ended()

    printed = lines_by_rank(ended)
    seeds = [line for line in printed if line.startswith("seed")]
    assert ended.code == 0, ended.err
    assert sorted({*printed} - {*seeds}) == [
        "arguments True True",
        "lock True",
        "pid True",
        "rank True",
    ]
    assert len(set(seeds)) == 2


PRELOADED: dict[str, tuple[str, str, Sequence[str]]] = {
    "arguments and variables": (
        "from sys import argv\nfrom posix import environ",
        """
        import sys
        print(kept.argv is sys.argv, sys.argv[-1], kept.environ[b"RANK"].decode())
        """,
        ["True --local-rank=0 0", "True --local-rank=1 1"],
    ),
    "signals": (
        "import signal; TERM, INT = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))",
        """
        import signal
        print(kept.TERM == signal.SIG_DFL, kept.INT is signal.default_int_handler)
        """,
        ["True True"] * 2,
    ),
    "a variable that is set before the imports": (
        "import os; os.environ['OMP_NUM_THREADS'] = '5'",
        "import os; print(os.environ['OMP_NUM_THREADS'])",
        ["5", "5"],
    ),
    "a handler of its standard error": (
        "import logging, sys; HANDLER = logging.StreamHandler(sys.stderr)",
        "import sys; print(kept.HANDLER.stream is sys.stderr)",
        ["True"] * 2,
    ),
}
"""Code of a module ``kept``, and of a script that uses it."""


@pytest.mark.parametrize("what", PRELOADED)
def test_preloaded_module_equals_own_import(clusterrun: Launcher, what: str) -> None:
    """Each worker has its own arguments and variables, and Python's signal handlers."""
    code, script, printed = PRELOADED[what]
    environ = install(clusterrun, "kept", code)

    ended = clusterrun.script(
        f"import kept\n{dedent(script)}",
        *(FORK, "--preload=kept", "--pass-local-rank"),
        workers=2,
        environ=environ,
    ).ended()

    assert lines_by_rank(ended) == printed, ended.err


def test_mpi4py_is_left_to_workers(clusterrun: Launcher) -> None:
    """Its import uses the process's slot of mpirun."""
    code = "import os; open(f'imported-{os.getpid()}', 'w').close()"
    environ = install(clusterrun, "mpi4py", code)
    install(clusterrun, "numpy", "")

    ended = clusterrun.script(
        "import numpy\nfrom mpi4py import *\n", "-v", workers=2, environ=environ
    ).ended()

    assert ended.code == 0, ended.err
    assert len(list(clusterrun.folder.glob("imported-*"))) == 2
    assert "as it connects to the outside when it is imported" in ended.err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_imports_count_cpus_of_a_worker(clusterrun: Launcher) -> None:
    """Libraries count them, for their threads, when they are loaded."""
    code = "import os; FOUND = len(os.sched_getaffinity(0))"
    environ = install(clusterrun, "counts", code)

    ended = clusterrun.script(
        """
        import counts, os
        print(counts.FOUND, len(os.sched_getaffinity(0)))
        """,
        *(FORK, "--preload=counts", "--numa-binding=exclusive"),
        workers=2,
        environ=environ,
    ).ended()

    half = len(os.sched_getaffinity(0)) // 2
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[rank {rank}] {half} {half}" for rank in (0, 1)]


def test_process_title(clusterrun: Launcher) -> None:
    """Many frameworks set a title with setproctitle."""
    ended = clusterrun.script(
        """
        import numpy, setproctitle
        setproctitle.setproctitle("my training")
        print(open("/proc/self/cmdline").read().rstrip("\\0"))
        """,
        "--start-method=fork",
    ).ended()

    assert (ended.code, ended.out) == (0, "my training\n"), ended.err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_command_line_names_the_script(clusterrun: Launcher, method: str) -> None:
    """``pgrep -f`` finds the ranks of a script."""
    ended = clusterrun.script(
        'print(open("/proc/self/cmdline").read().split("\\0")[-4:-1])',
        f"--start-method={method}",
        args=["--lr", "0.1"],
    ).ended()

    assert ended.code == 0, ended.err
    script, *args = ast.literal_eval(ended.out)
    assert (Path(script).suffix, args) == (".py", ["--lr", "0.1"])


STARTS_A_THREAD = """
    import os, threading, time
    open(f"imported-{os.getpid()}", "w").close()
    threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
"""


def test_failed_import_is_not_cached(clusterrun: Launcher, tmp_path: Path) -> None:
    """A variable set meanwhile may change what the module does."""
    code = f"import os\nif 'QUIET' not in os.environ:\n{indent(dedent(STARTS_A_THREAD), '    ')}"
    environ = install(clusterrun, "numpy", code)
    environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    first, second = (
        clusterrun.script("import numpy", "-v", workers=2, environ=environ | quiet).ended()
        for quiet in ({}, {"QUIET": "1"})
    )

    assert f"{SPAWNED}a module started a thread (python" in first.err
    assert (first.code, second.code) == (0, 0)
    assert SPAWNED not in second.err


SYSTEM_PYTHON = "/usr/bin/python3"
"""Root's own interpreter can't be read by other users."""


def test_known_package_that_reads_rank(clusterrun: Launcher) -> None:
    """As a new version might: the imports before it are repeated in another server."""
    environ = install(clusterrun, "numpy", "import os; open(f'numpy-{os.getpid()}', 'w').close()")
    install(clusterrun, "torch", "import os; RANK = os.environ.get('RANK')")

    ended = clusterrun.script(
        "import numpy, torch; print(torch.RANK)", "-v", workers=2, environ=environ
    ).ended()

    assert lines_by_rank(ended) == ["0", "1"]
    assert "left to each worker: torch and what is imported after it, as torch" in ended.err
    assert len(list(clusterrun.folder.glob("numpy-*"))) == 2


WITHOUT_RIGHTS = ("setpriv", f"--reuid={100_000 + os.getpid()}", "--clear-groups")
"""The kernel counts the processes of a user, so this user is not used by other tests."""

READS_ALL = (
    "--inh-caps=+dac_read_search,+dac_override",
    "--ambient-caps=+dac_read_search,+dac_override",
)


@pytest.mark.needs("root", "setpriv", "prlimit")
@pytest.mark.parametrize(
    ("limit", "options", "code"),
    [(6, (), 126), (2, (), 3), (2, ("--numa-strict",), 3), (1, (), 3)],
    ids=["worker", "relay", "trial of a binding", "fork server"],
)
def test_too_many_processes(
    clusterrun: Launcher, limit: int, options: Sequence[str], code: int
) -> None:
    """One line names the limit."""
    around: Sequence[str] = (*WITHOUT_RIGHTS, *READS_ALL, "prlimit", f"--nproc={limit}", "--")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        script = Path(folder, "train.py")
        script.write_text("import time\ntime.sleep(60)\n")

        ended = clusterrun.command(
            *(*options, "--python", SYSTEM_PYTHON, str(script)), workers=8, around=around
        ).ended()

    assert ended.code == code
    assert f"too many processes: the user's limit is {limit} (ulimit -u)" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.needs("root", "setpriv", "prlimit")
def test_too_few_processes_for_log_files(clusterrun: Launcher) -> None:
    """One line names the limit: the relay writes them in a thread, which counts as a process."""
    around: Sequence[str] = (*WITHOUT_RIGHTS, *READS_ALL, "prlimit", "--nproc=3", "--")

    ended = clusterrun.command(
        *("--log-dir", "logs", "--python", SYSTEM_PYTHON, "-m", "this"), workers=1, around=around
    ).ended()

    assert ended.code != 0
    assert "clusterrun: error: too many processes: the user's limit is 3 (ulimit -u)" in ended.err
    assert "Traceback" not in ended.err


SCRIPTS_THAT_ARE_HARD_TO_READ = {
    "a folder without __init__.py": "from loose.inner.module import VALUE\nimport numpy\n",
    "a long sum": "import numpy\nVALUE = " + " + ".join(["1"] * 700) + "\n",
    "a long chain": "import numpy\nif 0: pass\n" + "elif 0: import x\n" * 300,
}


@pytest.mark.parametrize("name", SCRIPTS_THAT_ARE_HARD_TO_READ)
def test_script_that_is_hard_to_read(clusterrun: Launcher, name: str) -> None:
    """Imports that can't be found in it are left to the workers."""
    inner = clusterrun.folder / "loose/inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    (inner / "module.py").write_text("VALUE = 700\n")
    script = SCRIPTS_THAT_ARE_HARD_TO_READ[name] + "print(numpy.__name__)\n"

    ended = clusterrun.script(script, workers=2).ended()

    assert ended.code == 0, ended.err
    assert lines_by_rank(ended) == ["numpy", "numpy"]


def test_compiler_warnings_are_printed_by_each_worker(clusterrun: Launcher) -> None:
    """Each worker prints them, as if it had compiled the script."""
    ended = clusterrun.script("import numpy\nprint(1 is 1)\n", workers=2).ended()

    printed = [line for line in ended.err.splitlines() if "SyntaxWarning" in line]
    assert ended.code == 0
    assert sorted(line[:9] for line in printed) == ["[rank 0] ", "[rank 1] "]


def test_unhashable_classes(clusterrun: Launcher) -> None:
    """They exist when the worker checks for open files."""
    ended = clusterrun.script(
        """
        import numpy

        class Kind(type):
            def __eq__(self, other):
                raise ValueError

        class Odd(metaclass=Kind):
            pass

        odd = Odd()
        odd.itself = odd
        """,
        "--start-method=fork",
    ).ended()

    assert (ended.code, ended.err) == (0, "")


def test_own_module_named_psutil(clusterrun: Launcher) -> None:
    """The script imports it, but the fork server, which binds workers, does not."""
    (clusterrun.folder / "resource.py").write_text("raise SystemExit('of the script')\n")
    cpu = min(os.sched_getaffinity(0))

    ended = clusterrun.script(
        "import numpy, os; print(sorted(os.sched_getaffinity(0)))",
        *("--numa-binding", "exclusive", "--start-method=fork"),
        workers=1,
        around=("taskset", "-c", f"{cpu}"),
    ).ended()

    assert (ended.code, ended.out) == (0, f"[{cpu}]\n"), ended.err
