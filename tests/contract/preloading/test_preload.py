"""Which modules are preloaded before workers are forked, and for which scripts workers are spawned."""

import ctypes.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import psutil
import pytest
from _pytest.mark.structures import ParameterSet
from clusterrun.workers import fork_server_client
from free_ports import free_port

from tests.contract.changed_times import command_with
from tests.contract.launched import SECONDS_TO_VANISH, Ended, Job, Launcher, await_end
from tests.contract.leading_names import leading_names
from tests.waiting import SECONDS_TO_ACT, wait_until

SECONDS_AT_ONCE = 20.0
"""Much less than the import timeout, and enough for a busy machine."""

SPAWNED = "clusterrun: workers are spawned: "
FORKED = "clusterrun: workers are forked; preloaded: "
FORK = "--start-method=fork"

LEFT = "clusterrun: left to each worker: "

USES_HAZARD = """
    import hazard
    print("value", hazard.VALUE)
"""

FIRST = """
    import os
    try:
        os.close(os.open(__file__ + ".was_here", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        first = False
    else:
        first = True
"""
"""``first`` is true in the fork server, and false in the worker."""

HANGS = FIRST + "    import time\n    if first: time.sleep(100)\n"


STARTS_DAEMONS_AND_HANGS = (
    FIRST
    + """
    import os, subprocess, time
    if first:
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "100"])
            os._exit(0)
        os.wait()
        os.close(os.open(__file__ + ".hangs", os.O_CREAT))
        time.sleep(100)
"""
)


class Hazard(NamedTuple):
    """A module that must not be imported before workers are forked."""

    code: str
    why: str
    """The reason that the launcher prints; ``{folder}`` is where the job runs."""
    is_printed: bool = False
    """The reason is printed without ``-v``."""
    out: str = ""
    """What the module prints in the worker."""
    err: str = ""


PRINTS = {
    "prints": ("print('a banner', 7)", "a banner 7\n", ""),
    "prints_without_flushing": (
        """
        import os, sys
        sys.stdout = open(1, "w", closefd=False)
        print("a banner")
        """,
        "a banner\n",
        "",
    ),
    "prints_an_error": ("import sys; print('a warning', file=sys.stderr)", "", "a warning\n"),
    "prints_by_c": ("import ctypes; ctypes.CDLL(None).printf(b'of C\\n')", "of C\n", ""),
    "has_a_program_print": ("import os; os.system('echo of a shell')", "of a shell\n", ""),
    "warns": (
        "import warnings; warnings.warn_explicit('old', FutureWarning, 'its.py', 3)",
        "",
        "its.py:3: FutureWarning: old\n",
    ),
    "prints_much": ("print('x\\n' * 50_000, end='')", "x\n" * 50_000, ""),
}
"""Code of a module that prints when it is imported, and what it prints to both streams."""

HAZARDS = {
    # Threads.
    "thread": Hazard(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
        """,
        "a module started a thread",
    ),
    "thread_pool": Hazard(
        """
        from concurrent.futures import ThreadPoolExecutor
        POOL = ThreadPoolExecutor(2)
        POOL.submit(int).result()
        """,
        "a module started a thread",
    ),
    # Would appear twice, or in the wrong place.
    "prints_when_forked": Hazard(
        "import os; os.register_at_fork(before=lambda: print('forking'))",
        "a fork makes a module print 'forking'",
        is_printed=True,
    ),
    "warns_its_importer": Hazard(
        "import warnings; warnings.warn('too old', DeprecationWarning, stacklevel=2)",
        "a module printed '<string>:1: DeprecationWarning: too old'",
        is_printed=True,
        err="{script}:2: DeprecationWarning: too old\n  import hazard\n",
    ),
    # Exits too early.
    "hangs": Hazard(HANGS, "importing hazard hangs: nothing has happened for 1 s", is_printed=True),
    "crashes": Hazard(
        FIRST + "    import ctypes\n    if first: ctypes.string_at(0)\n",
        "importing hazard was killed by signal 11",
        is_printed=True,
    ),
    "kills_itself": Hazard(
        FIRST + "    import signal\n    if first: os.kill(os.getpid(), signal.SIGKILL)\n",
        "importing hazard was killed by signal 9",
        is_printed=True,
    ),
    "ends_the_process": Hazard(
        FIRST + "    if first: os._exit(0)\n",
        "importing hazard ended the process with code 0",
        is_printed=True,
    ),
    "ends_the_process_with_a_code_like_a_signal_s": Hazard(
        FIRST + "    if first: os._exit(143)\n",
        "importing hazard ended the process with code 143",
        is_printed=True,
    ),
    "exits": Hazard(
        FIRST + "    if first: raise SystemExit(3)\n", "importing hazard raised SystemExit: 3"
    ),
    "raises": Hazard(
        FIRST + "    if first: raise ValueError('no license')\n",
        "importing hazard raised ValueError: no license",
    ),
    # The state of the process.
    "signal_handler": Hazard(
        "import signal; signal.signal(signal.SIGUSR1, print)",
        "a module changed the handler of signal 10",
    ),
    "signal_ignored": Hazard(
        "import signal; signal.signal(signal.SIGUSR2, signal.SIG_IGN)",
        "a module changed the handler of signal 12",
    ),
    "signal_blocked": Hazard(
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
        "a module changed the signals it catches",
    ),
    "faulthandler": Hazard(
        "import faulthandler; faulthandler.enable()", "a module changed the signals it catches"
    ),
    "timer": Hazard(
        "import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 100)", "a module changed its timers"
    ),
    "folder": Hazard("import os; os.chdir('/')", "a module changed the current directory"),
    "umask": Hazard("import os; os.umask(0o077)", "a module changed the umask"),
    "limits": Hazard(
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "a module changed its limits",
    ),
    "file": Hazard("FILE = open('log', 'w')", "a module left {folder}/log open"),
    "pipe": Hazard("import os; os.pipe()", "a module left pipe:["),
    "socket": Hazard(
        "import socket; SOCKET = socket.create_server(('127.0.0.1', 0))", "a module left socket:["
    ),
    "child": Hazard(
        "import subprocess; subprocess.Popen(['sleep', '100'])", "a module started process "
    ),
    "daemon": Hazard(
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 3)
                time.sleep(100)
            os._exit(0)
        os.wait()
        """,
        "a module started process ",
    ),
    "null": Hazard(
        "import os; NULL = os.open('/dev/null', os.O_RDWR)", "a module left /dev/null open"
    ),
    "random_device": Hazard(
        "import os; CHANCE = os.open('/dev/urandom', os.O_RDONLY)",
        "a module left /dev/urandom open",
    ),
    "cpus": Hazard(
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
        "a module changed the CPUs that it may use",
    ),
    # Must not be shared by ranks.
    "lock": Hazard(
        "import multiprocessing; LOCK = multiprocessing.Lock()",
        "a module made memory or a lock that all ranks would share (",
    ),
    "shared_memory": Hazard(
        "import mmap; MEMORY = mmap.mmap(-1, 4096)",
        "a module made memory or a lock that all ranks would share (",
    ),
    "temporary_folder": Hazard(
        """
        import os, tempfile
        tempfile.tempdir = os.getcwd()
        os.environ["OF_HAZARD"] = tempfile.mkdtemp()
        """,
        "a module made a folder that all ranks would share (OF_HAZARD={folder}/tmp",
    ),
    # A debugger or a profiler.
    "tracer": Hazard(
        "import sys; sys.settrace(lambda *_: None)", "a debugger or a profiler is active"
    ),
    "profiler": Hazard(
        "import sys; sys.setprofile(lambda *_: None)", "a debugger or a profiler is active"
    ),
}


class Installed:
    """A folder of installed modules, and the jobs that import them."""

    def __init__(self, clusterrun: Launcher) -> None:
        """Create the folder, for the jobs of ``clusterrun``."""
        self.clusterrun = clusterrun
        self.folder = clusterrun.folder / "site-packages"
        self.folder.mkdir()

    def add(self, name: str, code: str) -> None:
        """Install a module, whose last line sets ``VALUE``; if it hangs, the import timeout is 1 s."""
        if code in {HANGS, STARTS_DAEMONS_AND_HANGS}:
            self.clusterrun.program = command_with(
                self.clusterrun.folder, fork_server_client, "IMPORT_TIMEOUT", 1.0
            )
        (self.folder / f"{name}.py").write_text(dedent(code) + "\nVALUE = 7\n")

    def started(
        self,
        script: str,
        *options: str,
        workers: int = 1,
        environ: Mapping[str, str] | None = None,
        around: tuple[str, ...] = (),
    ) -> Job:
        """Start a script that finds the modules; its leading imports are preloaded by name."""
        # The user's own modules beside the script run only in workers.
        own = {path.stem for path in self.clusterrun.folder.iterdir()}
        names = [name for name in leading_names(script) if name.partition(".")[0] not in own]
        is_given = any(option.startswith("--preload=") for option in options)
        preload = () if is_given or not names else (f"--preload={','.join(names)}",)
        return self.clusterrun.script(
            script,
            *preload,
            *options,
            workers=workers,
            environ={"PYTHONPATH": str(self.folder), **(environ or {})},
            around=around,
        )

    def ended(self, script: str, *options: str, **more: Any) -> Ended:
        """Return the result of such a job."""
        return self.started(script, *options, **more).ended()


@pytest.fixture
def installed(clusterrun: Launcher) -> Installed:
    """Return an empty folder of installed modules."""
    return Installed(clusterrun)


def server_of(job: Job) -> int:
    """Return the process that imports and forks the workers: the child of the guard."""
    children = wait_until(psutil.Process(job.fork_server).children, "a process that imports")
    return children[0].pid


def launcher_lines(ended: Ended) -> str:
    """Return the launcher's lines, except the one with the run id."""
    lines = ended.err.splitlines(keepends=True)
    return "".join(ln for ln in lines if ln.startswith("clusterrun: ") and "run 2" not in ln)


def first_of_each(names: Iterable[str], count: int) -> list[ParameterSet]:
    """Return a case for each name; only the first of each ``count`` is not marked as long.

    All exercise the same code of the launcher; only the reason differs.
    """
    return [
        pytest.param(name, marks=() if place % count == 0 else pytest.mark.long)
        for place, name in enumerate(names)
    ]


TRAINS = """
    import sys
    import torch

    def train(model):
        return torch.optim.SGD(model.parameters())

    print("had it:", "torch._dynamo" in sys.modules)
"""

UNSUITABLE_DYNAMO = {
    "raises": ("raise ImportError('no sympy')", "importing torch._dynamo raised ImportError"),
    "a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()",
        "a module started a thread",
    ),
    "reads RANK": ("import os; os.environ.get('RANK')", "torch._dynamo reads variable RANK"),
}


def add_torch(installed: Installed, dynamo: str) -> None:
    """Install an empty torch, and a torch._dynamo with this code."""
    (installed.folder / "torch").mkdir()
    (installed.folder / "torch/version.py").write_text("__version__ = '2.13.0'")
    seeded = "import types; default_generator = types.SimpleNamespace(seed=int)"
    installed.add("torch/__init__", seeded)
    installed.add("torch/_dynamo", dynamo)


def test_dynamo_is_preloaded(installed: Installed) -> None:
    """After torch."""
    add_torch(installed, "import time; time.sleep(0.05)")

    ended = installed.ended(TRAINS, "-v", "--preload=auto", workers=2)

    assert ended.out.count("had it: True") == 2
    assert re.search(rf"{FORKED}.*torch\._dynamo \(\d+\.\d\d s\)", ended.err)


@pytest.mark.parametrize("name", UNSUITABLE_DYNAMO)
def test_unsuitable_dynamo_is_left_to_workers(installed: Installed, name: str) -> None:
    """Workers are forked from another process, which has not tried to import it."""
    dynamo, why = UNSUITABLE_DYNAMO[name]
    add_torch(installed, dynamo)

    ended = installed.ended(TRAINS, "-v", "--preload=auto", workers=2)

    assert ended.code == 0
    assert ended.out.count("had it: False") == 2
    assert FORKED in ended.err
    assert f"{LEFT}torch._dynamo, as {why}" in ended.err


def assert_refused(ended: Ended, why: str) -> None:
    """Assert that no worker has run, and that the report has the reason."""
    assert (ended.code, ended.out) == (126, "")
    assert SPAWNED not in ended.err
    assert re.search(
        rf"clusterrun: rank 0 on \S+ could not be started: run in place: {re.escape(why)}",
        ended.err,
    )


@pytest.mark.parametrize("name", first_of_each(HAZARDS, 2))
def test_hazard_is_left_to_workers(installed: Installed, name: str) -> None:
    """Workers are spawned, with the same result; ``-v`` prints the reason."""
    hazard = HAZARDS[name]
    installed.add("hazard", hazard.code)

    ended = installed.ended(USES_HAZARD, "-v", "--shutdown-timeout=2")

    assert (ended.code, ended.out) == (0, f"{hazard.out}value 7\n")
    why = hazard.why.replace("{folder}", str(installed.clusterrun.folder))
    assert f"\n{SPAWNED}{why}" in ended.err
    assert FORKED not in ended.err


@pytest.mark.parametrize("name", ["child", "crashes", "hangs"])
def test_start_method_fork_refuses_hazard(installed: Installed, name: str) -> None:
    """The report has the reason, and nothing runs."""
    hazard = HAZARDS[name]
    installed.add("hazard", hazard.code)

    ended = installed.ended(USES_HAZARD, "--start-method", "fork")

    assert_refused(ended, hazard.why.replace("{folder}", str(installed.clusterrun.folder)))


@pytest.mark.parametrize("name", [*(n for n in HAZARDS if HAZARDS[n].is_printed), "child"])
def test_which_reasons_are_printed_by_default(installed: Installed, name: str) -> None:
    """One line has the reason and the cost."""
    hazard = HAZARDS[name]
    # Under the name of a verified package.
    installed.add("numpy", hazard.code)
    script = "import numpy\nif numpy.VALUE: print('value', numpy.VALUE)"

    # One module has started a child, which is left when the workers have ended.
    ended = installed.ended(script, "--preload=auto", "--shutdown-timeout=1", workers=2)

    assert (ended.code, max(ended.out.splitlines())) == (0, "[rank 1] value 7")
    printed = re.sub(r"process \d+", "process ", launcher_lines(ended))
    why = hazard.why.replace("hazard", "numpy")
    cost = "; all 2 import separately what could be imported once (docs/binding.md)"
    lines = [line for line in printed.splitlines() if "sleep (pid" not in line]
    assert lines == [f"{SPAWNED}{why}{cost}"]


@pytest.mark.parametrize("name", PRINTS)
def test_each_worker_prints_output_of_imports(installed: Installed, name: str) -> None:
    """First, as if it had imported the module itself; it is forked."""
    code, out, err = PRINTS[name]
    installed.add("hazard", code)

    ended = installed.ended("import hazard\nprint('and then')", "-v", "--tee", "0", workers=2)

    assert ended.code == 0
    assert f"\n{FORKED}" in ended.err
    expected = [
        f"[rank {rank}] {line}" for rank in (0, 1) for line in [*out.splitlines(), "and then"]
    ]
    assert sorted(ended.out.splitlines()) == sorted(expected)
    assert ended.err.count(err or "[rank") == (2 if err else 0)


def test_output_of_import_this(clusterrun: Launcher) -> None:
    """The worker prints it once."""
    ended = clusterrun.script("import this", "--preload=this", workers=1).ended()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("The Zen of Python")
    assert ended.out.count("The Zen of Python") == 1


def test_open_gpu_device(installed: Installed, tmp_path: Path) -> None:
    """A GPU context can't be used after a fork.

    The reason names the device, although CUDA opens an eventfd before it.
    """
    installed.add(
        "hazard",
        """
        import os
        COUNTER = os.eventfd(0) if hasattr(os, "eventfd") else 0
        DEVICE = open("/dev/nvidiactl")
        """,
    )
    around = with_device("nvidiactl", tmp_path)

    ended = installed.ended(USES_HAZARD, "-v", around=around)
    refused = installed.ended(USES_HAZARD, "--start-method", "fork", around=around)

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert f"\n{SPAWNED}a module uses a GPU (/dev/nvidiactl)\n" in ended.err
    assert_refused(refused, "a module uses a GPU (/dev/nvidiactl)")


def test_mapped_gpu_device(installed: Installed, tmp_path: Path) -> None:
    """The file may be closed again."""
    installed.add(
        "hazard",
        """
        import ctypes
        c = ctypes.CDLL(None)
        c.mmap.restype, c.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
        COUNTER = c.eventfd(0, 0)
        with open("/dev/kfd") as file:
            ADDRESS = c.mmap(None, 4096, 1, 2, file.fileno(), 0)
        """,
    )

    ended = installed.ended(USES_HAZARD, "-v", around=with_device("kfd", tmp_path))

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert f"\n{SPAWNED}a module uses a GPU (/dev/kfd)\n" in ended.err


def with_device(name: str, folder: Path) -> tuple[str, ...]:
    """Return a command that runs another one with a file of this name in /dev."""
    devices = folder / "dev"
    devices.mkdir()
    steps = f"""
        mount --rbind /dev {devices}
        mount -t tmpfs tmpfs /dev
        for device in null zero full random urandom tty; do
            : >/dev/$device
            mount --bind {devices}/$device /dev/$device
        done
        mkdir /dev/shm
        mount --bind {devices}/shm /dev/shm
        ln -s /proc/self/fd /dev/fd
        echo >/dev/{name}
        exec "$@"
    """
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    around = ("unshare", "--mount", *user, "sh", "-ec", steps, "sh")
    if subprocess.run([*around, "true"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("this system allows no mount namespace")
    return around


POOL = """
    #include <pthread.h>
    #include <unistd.h>
    static pthread_t threads[3];
    static int wanted;
    static void *work(void *_) { while (wanted) usleep(1000); return 0; }
    static void begin(void) {
        wanted = 1;
        for (int n = 0; n < 3; n++) pthread_create(&threads[n], 0, work, 0);
    }
    static void end(void) {
        wanted = 0;
        for (int n = 0; n < 3; n++) pthread_join(threads[n], 0);
    }
    __attribute__((constructor)) static void load(void) {
        begin();
        if (ENDS_BEFORE_A_FORK) pthread_atfork(end, 0, 0);
    }
"""


def install_pool(installed: Installed, *, ends_before_a_fork: bool) -> None:
    """Install a library with threads, and ``hazard``, which loads it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = installed.folder / "pool.c", installed.folder / "libpool.so"
    source.write_text(POOL)
    ends = f"-DENDS_BEFORE_A_FORK={int(ends_before_a_fork)}"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-pthread", ends, "-o", library, source],
        check=True,
        timeout=SECONDS_TO_ACT,
    )
    installed.add("hazard", f"import ctypes; LIBRARY = ctypes.CDLL({str(library)!r})")


def test_library_with_threads(installed: Installed) -> None:
    """Its threads would be missing in a child."""
    install_pool(installed, ends_before_a_fork=False)

    ended = installed.ended(USES_HAZARD, "-v")
    refused = installed.ended(USES_HAZARD, "--start-method", "fork")

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert f"\n{SPAWNED}a module started a thread (" in ended.err
    assert_refused(refused, "a module started a thread")


def test_library_with_atfork_handlers(installed: Installed) -> None:
    """Like OpenBLAS, it ends its threads before a fork."""
    install_pool(installed, ends_before_a_fork=True)

    ended = installed.ended(USES_HAZARD, "-v")

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert f"\n{FORKED}" in ended.err


VARIABLES = {
    "OMP_PROC_BIND": ("true", "libraries bind threads when they are loaded"),
    "OMP_PLACES": ("cores", "libraries bind threads when they are loaded"),
    "KMP_AFFINITY": ("compact", "libraries bind threads when they are loaded"),
    "GOMP_CPU_AFFINITY": ("0", "libraries bind threads when they are loaded"),
    "LD_PRELOAD": (ctypes.util.find_library("m") or "", "a library is injected"),
    "COVERAGE_PROCESS_START": ("setup.cfg", "coverage is measured"),
    "PYTHONPROFILEIMPORTTIME": ("1", "the interpreter itself is measured"),
    "PYTHONTRACEMALLOC": ("1", "the interpreter itself is measured"),
}


@pytest.mark.parametrize("name", first_of_each(VARIABLES, 3))
def test_variable_prevents_fork(installed: Installed, name: str) -> None:
    """Whatever the script imports."""
    value, why = VARIABLES[name]
    installed.add("hazard", "")

    ended = installed.ended(USES_HAZARD, "-v", environ={name: value})
    refused = installed.ended(USES_HAZARD, "--start-method", "fork", environ={name: value})

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert f"{SPAWNED}{name} is set: {why}" in ended.err
    assert_refused(refused, f"{name} is set: {why}")


def forked_after_one_import(ended: Ended) -> bool:
    """Return whether one package was imported before workers were forked."""
    took = r"(1 that took no time|\w+ \(0\.\d+ s\))\n"
    return re.search(re.escape(FORKED) + took, ended.err) is not None


def test_failing_import_is_left_to_workers(installed: Installed) -> None:
    """The imports before it are repeated in another process, and workers are forked."""
    installed.add("pandas", "")
    installed.add("numpy", "raise ValueError('no license')")
    script = "import pandas\ntry:\n    import numpy\nexcept ValueError:\n    print('without')"

    ended = installed.ended(script, "--preload=auto", workers=2)
    verbose = installed.ended(script, "--preload=auto", "-v", workers=2)

    assert (ended.code, ended.out.count("without")) == (0, 2)
    assert launcher_lines(ended) == (
        "clusterrun: importing numpy raised ValueError: no license, so each of 2 workers imports"
        " numpy itself\n"
    )
    assert forked_after_one_import(verbose)


STARTED_BEFORE_IMPORTS = {
    "debugger": ("import pydevd", "pydevd is active"),
    "coverage": ("import coverage", "coverage is active"),
    "tracer": ("import sys; sys.settrace(lambda *_: None)", "a debugger or a profiler is active"),
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "something started a thread",
    ),
}


@pytest.mark.parametrize("name", STARTED_BEFORE_IMPORTS)
def test_debugger_or_thread_before_imports(installed: Installed, name: str) -> None:
    code, why = STARTED_BEFORE_IMPORTS[name]
    installed.add("hazard", "")
    installed.add("pydevd", "")
    installed.add("coverage", "")
    installed.add("sitecustomize", code)

    ended = installed.ended(USES_HAZARD, "-v")
    refused = installed.ended(USES_HAZARD, "--start-method", "fork")

    assert ended.code == 0
    assert ended.out == "value 7\n"
    assert f"\n{SPAWNED}{why}\n" in ended.err
    assert_refused(refused, why)


def test_site_code_that_reads_rank(installed: Installed) -> None:
    """Each worker runs it, unless the user names the modules or the file is trusted."""
    installed.add("hazard", "")
    installed.add("pandas", "")
    reads = "import os; print('rank', os.environ['RANK']) if 'RANK' in os.environ else 0"
    installed.add("sitecustomize", reads)

    ended = installed.ended(USES_HAZARD, "-v", "--preload=auto", workers=2)
    named = installed.ended(USES_HAZARD, "-v", workers=2)
    trusts = {"CLUSTERRUN_TRUSTED_SITE_FILES": str(installed.folder / "sitecustomize.py")}
    trusted = installed.ended("import pandas", "-v", "--preload=auto", workers=2, environ=trusts)

    file = installed.folder / "sitecustomize.py"
    vouching = f"--preload torch, or CLUSTERRUN_TRUSTED_SITE_FILES={file}"
    why = f"{file} may read a variable that differs between workers; if it does not, use {vouching}"
    assert f"{SPAWNED}{why}; all 2 import separately what could be imported once" in ended.err
    assert sorted(re.findall(r"rank \d\n", ended.out)) == ["rank 0\n", "rank 1\n"]
    assert forked_after_one_import(named)
    assert named.out.count("value 7") == 2
    assert forked_after_one_import(trusted)


READERS = {
    "get": ("os.environ.get('LOCAL_RANK')", "variable LOCAL_RANK"),
    "bytes": ("os.getenvb(b'LOCAL_RANK').decode()", "variable LOCAL_RANK"),
    "copy": ("os.environ.copy()['LOCAL_RANK']", "all variables"),
    "pop": ("os.environ.pop('LOCAL_RANK', None)", "variable LOCAL_RANK"),
    "merged": (
        "({} | os.environ if hasattr(dict, '__or__') else {**os.environ})['LOCAL_RANK']",
        "all variables",
    ),
}
"""One for each watched method of ``os.environ``, and each kind of access to it."""


@pytest.mark.parametrize("how", READERS)
def test_module_that_reads_rank_is_left_to_workers(installed: Installed, how: str) -> None:
    """Also its importer; other modules are imported once."""
    code, what = READERS[how]
    installed.add("before", "import os; PID = os.getpid()")
    installed.add("reader", f"import os; RANK = {code}; PID = os.getpid()")
    installed.add("imports_reader", "import before, reader")

    ended = installed.ended(
        """
        import before
        import imports_reader
        import os
        print(before.PID == os.getppid(), imports_reader.reader.PID == os.getpid(),
              imports_reader.reader.RANK)
        """,
        "-v",
        "--start-method=fork",
        workers=2,
    )

    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [
        f"[rank {rank}] True True {rank}" for rank in range(2)
    ]
    assert (
        f"\n{LEFT}imports_reader and what is imported after it, as reader reads {what}\n"
        in ended.err
    )


def test_package_that_reads_its_own_variables_is_imported_once(installed: Installed) -> None:
    """It looks for them among all; a module that it imports may read any of these."""
    installed.add("reader", "import os; NAMES = [*os.environ]")
    installed.add("tqdm", "import os; OWN = [name for name in os.environ if name[:4] == 'TQDM']")
    installed.add("numba", "import reader")

    ended = installed.ended("import tqdm, numba", "-v", "--start-method=fork", workers=2)

    assert ended.code == 0
    left = f"{LEFT}numba and what is imported after it, as reader reads all variables\n"
    assert f"\n{left}" in ended.err


def test_module_that_the_launcher_uses_too_is_imported_once(installed: Installed) -> None:
    """What only the fork server has imported is hidden; what the script has imported stays."""
    names = "contextlib, signal, socket, subprocess, threading, traceback, warnings"
    # Not each Python has psutil.
    psutil = "try:\n    import psutil\nexcept ImportError:\n    psutil = None"
    installed.add("hazard", f"import {names}\n{psutil}")
    script = f"""
        import hazard, sys, {names}
        names = [name for name in "{names}, psutil".split(", ") if getattr(hazard, name)]
        print([name for name in names if __import__(name) is not getattr(hazard, name)])
    """

    ended = installed.ended(script, "--start-method=fork", "--numa-binding=exclusive", workers=2)

    assert sorted(ended.out.splitlines()) == ["[rank 0] []", "[rank 1] []"], ended.err


def test_module_that_sets_rank_is_left_to_workers(installed: Installed) -> None:
    """Each worker has its own variable."""
    installed.add("hazard", "import os; os.environ['RANK'] = '9' + os.environ.get('RANK', '')")

    ended = installed.ended(
        "import hazard, os; print(os.environ['RANK'])", "-v", "--start-method=fork", workers=2
    )

    assert sorted(ended.out.splitlines()) == ["[rank 0] 90", "[rank 1] 91"]
    assert (
        f"\n{LEFT}hazard and what is imported after it, as hazard reads variable RANK\n"
        in ended.err
    )


def test_module_that_sets_other_variable(installed: Installed) -> None:
    """The variable reaches the workers, and programs that they execute."""
    installed.add("hazard", "import os; os.environ['OF_HAZARD'] = 'set'")

    ended = installed.ended(
        "import hazard, os; os.system('echo $OF_HAZARD $RANK')", "--start-method=fork", workers=2
    )

    assert sorted(ended.out.splitlines()) == ["[rank 0] set 0", "[rank 1] set 1"]


def test_module_that_configures_garbage_collection(installed: Installed) -> None:
    """Workers have its settings."""
    installed.add("quiet", "import gc; gc.disable()")
    installed.add("seldom", "import gc; gc.set_threshold(50_000, 20, 30)")
    script = """
        import gc, {module}
        print(gc.isenabled(), gc.get_threshold())
    """

    spawned = installed.ended(script.format(module="json"), "--start-method=spawn").out
    off, seldom, on = (
        installed.ended(script.format(module=module), "--start-method=fork").out
        for module in ("quiet", "seldom", "json")
    )

    assert spawned.startswith("True (")
    assert on == spawned
    assert off == spawned.replace("True", "False")
    assert seldom == "True (50000, 20, 30)\n"


SETTERS = {
    "script": "import os\nos.environ['WANTED'] = '1'\nimport numpy",
    "local_module": "import sets_it\nimport numpy",
    "local_package": "from local.sets_it import NAME\nimport numpy",
}


@pytest.mark.parametrize("where", SETTERS)
def test_imports_after_set_variable_are_left_to_workers(installed: Installed, where: str) -> None:
    """They may read it, even if the package is listed as fork-safe."""
    installed.add("numpy", "import os; SEEN = os.environ.get('WANTED'); PID = os.getpid()")
    sets_it = "import os\nos.environ['WANTED'] = '1'\nNAME = 1\n"
    folder = installed.clusterrun.folder
    (folder / "sets_it.py").write_text(sets_it)
    (folder / "local").mkdir()
    (folder / "local" / "__init__.py").touch()
    (folder / "local" / "sets_it.py").write_text(sets_it)
    script = f"{SETTERS[where]}\nprint(numpy.SEEN, numpy.PID == os.getpid())"

    ended = installed.ended(f"import os\n{script}", "-v", "--preload=auto", "--start-method=fork")

    assert (ended.code, ended.out) == (0, "1 True\n")
    name = next(folder.glob("script*.py")).name + ":3" if where == "script" else "sets_it.py:2"
    assert (
        f"\n{LEFT}what is imported from {name} on, as that line may have side effects\n"
        in ended.err
    )


WHERE = """
    import hazard, os
    print("here" if hazard.PID == os.getpid() else "before", "json" in __import__("sys").modules)
"""


@pytest.mark.parametrize(
    ("options", "printed", "line"),
    [
        pytest.param(("--preload=none", FORK), "here False\n", f"{FORKED}nothing\n", id="nothing"),
        pytest.param(("--preload=json,decimal", FORK), "here True\n", FORKED, id="of Python"),
        pytest.param(("--preload=hazard", FORK), "before False\n", FORKED, id="installed"),
        pytest.param(("--start-method=spawn",), "here False\n", "", id="spawned"),
    ],
)
def test_preload_option(
    installed: Installed, options: tuple[str, ...], printed: str, line: str
) -> None:
    """The named modules are preloaded, not those that the script imports."""
    installed.add("hazard", "import os; PID = os.getpid()")

    ended = installed.ended(WHERE, "-v", *options)

    assert (ended.code, ended.out) == (0, printed)
    assert line in launcher_lines(ended)
    assert SPAWNED not in ended.err
    assert (FORKED in ended.err) == bool(line)


def test_missing_named_module(installed: Installed) -> None:
    """It is reported, because the script itself does not fail."""
    installed.add("hazard", "")
    why = "importing nosuch raised ModuleNotFoundError: No module named 'nosuch'"

    ended = installed.ended(USES_HAZARD, "--preload=json,nosuch")
    refused = installed.ended(USES_HAZARD, "--preload=json,nosuch", "--start-method=fork")

    assert (ended.code, ended.out, ended.err) == (0, "value 7\n", f"{SPAWNED}{why}\n")
    assert_refused(refused, why)


def test_verbose_names_import_time(installed: Installed) -> None:
    """If the import was slow."""
    installed.add("slow", "import time; time.sleep(0.2)")
    installed.add("hazard", "")

    ended = installed.ended("import json, slow, hazard", "-v", "--start-method=fork")

    assert ended.code == 0
    assert re.search(rf"{FORKED}.*\bslow \(\d+\.\d\d s\)", ended.err)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_hanging_import(installed: Installed, number: signal.Signals) -> None:
    """The job ends at once: no worker has started that would need a grace period."""
    installed.add("hazard", HANGS)
    job = installed.started(USES_HAZARD)
    wait_until((installed.folder / "hazard.py.was_here").exists)
    hanging = server_of(job)

    begun = time.monotonic()
    job.signal(number)
    ended = job.ended()

    assert time.monotonic() - begun < SECONDS_AT_ONCE
    assert (ended.code, ended.out) == (128 + number, "")
    await_end(hanging, SECONDS_TO_VANISH)


def test_server_killed_during_import(installed: Installed) -> None:
    """Workers are spawned. The kernel kills like this if memory is short."""
    installed.add("hazard", HANGS)
    job = installed.started(USES_HAZARD)
    wait_until((installed.folder / "hazard.py.was_here").exists)

    os.kill(server_of(job), signal.SIGKILL)
    ended = job.ended()

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert ended.err == f"{SPAWNED}importing hazard was killed by signal 9\n"


FAMILY = """
    import hazard, os, subprocess, time
    subprocess.Popen(["sleep", "100"])
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    print("ready", os.getpid(), flush=True)
    time.sleep(100)
"""


def test_server_killed(installed: Installed) -> None:
    """The job ends, and no process of it is left."""
    installed.add("hazard", "")
    job = installed.started(FAMILY, "--start-method=fork", workers=2)
    job.numbers("ready", 2)

    os.kill(server_of(job), signal.SIGKILL)
    ended = job.ended()

    assert ended.code == 137
    assert "clusterrun: exit code 137, from the fork server: 128 + 9 for SIGKILL\n" in ended.err
    assert job.left() == []


def test_processes_of_hanging_import_are_killed(installed: Installed) -> None:
    """Before the workers start."""
    installed.add("hazard", STARTS_DAEMONS_AND_HANGS)
    job = installed.started(USES_HAZARD)

    ended = job.ended()

    assert (ended.code, ended.out) == (0, "value 7\n")
    assert ended.err == f"{SPAWNED}importing hazard hangs: nothing has happened for 1 s\n"
    assert job.left() == []


@pytest.mark.parametrize("victim", ["agent", "guard", "server"])
def test_agent_guard_or_server_killed_during_import(installed: Installed, victim: str) -> None:
    """No process is left."""
    installed.add("hazard", STARTS_DAEMONS_AND_HANGS)
    job = installed.started(USES_HAZARD)
    wait_until((installed.folder / "hazard.py.hangs").exists)
    pids = {"agent": job.agent, "guard": job.fork_server, "server": server_of(job)}

    os.kill(pids[victim], signal.SIGKILL)

    if victim != "agent":
        assert job.ended().code == 0
    assert job.left() == []


def test_sigterm_during_hanging_import_on_one_of_two_nodes(installed: Installed) -> None:
    """Both end."""
    # With the usual import timeout.
    installed.add("hazard", HANGS + "\n")
    join = ("-v", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    nodes = [installed.started(USES_HAZARD, *join, f"--node-rank={rank}") for rank in range(2)]
    wait_until((installed.folder / "hazard.py.was_here").exists)
    for node in nodes:
        node.wait_for("attempt 0")

    begun = time.monotonic()
    nodes[0].signal(signal.SIGTERM)
    codes = [node.ended().code for node in nodes]

    assert codes == [143, 143]
    assert time.monotonic() - begun < SECONDS_AT_ONCE
    assert [node.left() for node in nodes] == [[], []]


def test_agent_killed_while_interpreter_starts(installed: Installed) -> None:
    """The server then imports nothing."""
    installed.add("sitecustomize", "import time; time.sleep(1)")
    installed.add("hazard", HANGS + "\n")
    job = installed.started(USES_HAZARD)
    wait_until(psutil.Process(job.agent).children, "a process of the agent")

    job.signal(signal.SIGKILL)

    assert job.left() == []
    assert not (installed.folder / "hazard.py.was_here").exists()


def test_sighup_to_all_processes_under_nohup(installed: Installed) -> None:
    """It ends nothing."""
    installed.add("hazard", "")
    script = "import hazard, time\nprint('ready', 1, flush=True)\ntime.sleep(1)\nprint('end')\n"
    job = installed.started(script, "--start-method=fork", around=("nohup",))
    job.numbers("ready")

    agent = psutil.Process(job.process.pid)
    for process in (agent, *agent.children(recursive=True)):
        process.send_signal(signal.SIGHUP)

    assert job.ended().code == 0
    assert "end\n" in job.out


def test_restart_while_one_of_two_nodes_imports(installed: Installed) -> None:
    """The import starts again, and the workers are forked like the others."""
    installed.add(
        "hazard", "import os, time; time.sleep(float(os.environ['SLOW'])); PID = os.getpid()"
    )
    script = """
        import hazard, os, sys
        if os.environ["RANK"] + os.environ["TORCHELASTIC_RESTART_COUNT"] == "00":
            sys.exit(1)
        print("in place", hazard.PID == os.getppid())
    """
    join = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    options = (*join, "--max-restarts=1", "--start-method=fork")
    nodes = [
        installed.started(script, *options, f"--node-rank={rank}", environ={"SLOW": slow})
        for rank, slow in enumerate(("0", "3"))
    ]

    ended = [node.ended() for node in nodes]

    assert [(it.code, it.out) for it in ended] == [(0, "in place True\n")] * 2, ended


def test_second_server_cannot_be_started(installed: Installed) -> None:
    """The error is the same as if the first one can't be started."""
    installed.add("hazard", HAZARDS["thread"].code)
    python = installed.clusterrun.folder / "python"
    python.write_text(f'#!/bin/sh\nrm "$0"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    ended = installed.ended(USES_HAZARD, "--python", str(python))

    assert (ended.code, ended.out) == (2, "")
    assert f"clusterrun: error: {python}: No such file or directory\n" in ended.err


def test_output_of_interpreter_start_is_shown_once(installed: Installed) -> None:
    """Although a second server starts the workers."""
    installed.add("hazard", HAZARDS["thread"].code)

    ended = installed.ended(USES_HAZARD, environ={"PYTHONWARNINGS": "bogus"})

    assert ended.code == 0
    assert ended.err.count("the workers' interpreter printed when it started") == 1


def test_restart_forks_from_same_server(installed: Installed) -> None:
    """No module is imported twice."""
    installed.add("hazard", "import os; PID = os.getpid()")
    job = installed.started(
        """
        import hazard, os
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        # In one piece, as a worker may be stopped at any time.
        print(f"attempt {attempt} {hazard.PID == os.getppid()}\\nfrom {hazard.PID}\\n", end="")
        raise SystemExit(attempt == "0")
        """,
        "--max-restarts=1",
        "--start-method=fork",
        workers=2,
    )

    ended = job.ended()

    assert ended.code == 0
    printed = [line for line in ended.out.splitlines() if "attempt" in line]
    assert max(printed) == "[rank 1] attempt 1 True"
    assert all(line.endswith(" True") for line in printed)
    assert len(set(job.numbers("from"))) == 1


def test_script_edited_between_attempts(installed: Installed) -> None:
    """The new text runs, and that of the user's module."""
    installed.add("hazard", "import os; PID = os.getpid()")
    folder = installed.clusterrun.folder
    (folder / "local.py").write_text("NUMBER = 1\n")

    ended = installed.ended(
        """
        import hazard, local, os, pathlib
        print("first", local.NUMBER, hazard.PID == os.getppid())
        path = pathlib.Path(__file__)
        path.write_text(path.read_text().replace("first", "second attempt").replace("exit(1)", ""))
        pathlib.Path("local.py").write_text("NUMBER = 2222\\n")
        exit(1)
        """,
        "--max-restarts=1",
        "--start-method=fork",
    )

    assert (ended.code, ended.out) == (0, "first 1 True\nsecond attempt 2222 True\n")


def test_script_broken_between_attempts(installed: Installed) -> None:
    """Python prints the error."""
    installed.add("hazard", "")

    ended = installed.ended(
        """
        import hazard, pathlib
        print("first")
        pathlib.Path(__file__).write_text("def broken(:\\n")
        exit(1)
        """,
        "--max-restarts=1",
    )

    assert (ended.code, ended.out) == (1, "first\n")
    assert "SyntaxError" in ended.err


@pytest.mark.long
def test_long_import_prints_notice(clusterrun: Launcher) -> None:
    """After ten seconds."""
    modules = clusterrun.folder / "modules"
    modules.mkdir()
    (modules / "slow.py").write_text("import time; time.sleep(13)\n")

    ended = clusterrun.script(
        "import slow; print('done')",
        *("--preload", "slow"),
        workers=2,
        environ={"PYTHONPATH": str(modules)},
    ).ended()

    assert ended.code == 0, ended.err
    assert re.fullmatch(
        r"clusterrun: importing slow before workers are forked: 1\d s so far"
        r" \(with --preload none, each worker imports it itself\)\n",
        ended.err,
    )


@pytest.mark.long
def test_import_that_cannot_be_killed(clusterrun: Launcher, tmp_path: Path) -> None:
    """Workers start without it. A debugger keeps it alive, as the kernel does in state D."""
    begun, held = tmp_path / "begun", tmp_path / "held"
    hazard = f"""
        import os, pathlib, time
        begun, held = pathlib.Path({str(begun)!r}), pathlib.Path({str(held)!r})
        if not held.exists():
            begun.with_suffix(".tmp").write_text(str(os.getpid()))
            begun.with_suffix(".tmp").rename(begun)
            while not held.exists():
                time.sleep(0.01)
            time.sleep(100)
    """
    (clusterrun.folder / "hazard.py").write_text(dedent(hazard))
    clusterrun.program = command_with(clusterrun.folder, fork_server_client, "IMPORT_TIMEOUT", 1.0)
    script = "import hazard\nprint('runs', 1, flush=True)"
    job = clusterrun.script(script, "--preload", "hazard", workers=2)

    wait_until(begun.exists)
    pid = int(begun.read_text())
    if ctypes.CDLL(None).ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        pytest.skip("this system does not allow ptrace")
    held.touch()
    job.numbers("runs", 2)
    os.waitpid(pid, 0)

    assert job.ended().code == 0
    assert "importing hazard hangs: nothing has happened for 1 s" in job.err


PTRACE_SEIZE = 0x4206  # sys/ptrace.h


@pytest.mark.parametrize("edited", ["__file__", "'local.py'"])
def test_variable_that_an_edited_file_sets_before_an_import(
    installed: Installed, edited: str
) -> None:
    """The next attempt imports the module with it."""
    installed.add("numpy", "import os; SEEN = os.environ.get('WANTED')")
    (installed.clusterrun.folder / "local.py").write_text("NAME = 1\n")

    ended = installed.ended(
        f"""
        import local, numpy, os, pathlib, time
        print("seen", numpy.SEEN, flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] != "0":
                time.sleep(100)
            path = pathlib.Path({edited})
            path.write_text("import os; os.environ['WANTED'] = '1'\\n" + path.read_text())
            exit(1)
        """,
        *("--preload=auto", "--max-restarts=1"),
        workers=2,
    )

    assert (ended.code, ended.out.count("seen 1")) == (0, 2), ended.err


SERVICE = """
    script: train.py
    services:
      other:
        command: "echo it is ${OF_NUMPY-unset} >new; mv new seen; sleep 100"
        on_failure: ignore
"""


def test_variable_of_a_preloaded_module_does_not_reach_services(installed: Installed) -> None:
    installed.add("numpy", "import os; os.environ['OF_NUMPY'] = 'set'")
    folder = installed.clusterrun.folder
    train = """
        import numpy, os, time
        while not os.path.exists("seen"):
            time.sleep(0.05)
        print("of train", os.environ["OF_NUMPY"], "of service", open("seen").read())
    """
    (folder / "train.py").write_text(dedent(train))
    (folder / "job.yaml").write_text(dedent(SERVICE))

    ended = installed.clusterrun.command(
        *("--config", "job.yaml"), workers=2, environ={"PYTHONPATH": str(installed.folder)}
    ).ended()

    assert ended.code == 0, ended.err
    assert ended.out.count("of train set of service it is unset") == 2
