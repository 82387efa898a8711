"""From all sources to one job: who wins, what is refused, and that every value has its origin."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import NumaBinding, Program, ProgramKind, WorkerCount
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.resolve import Resolved, resolve
from clusterrun.sources.settings import Flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.described import PROCESS, describe, mistake

pytestmark = pytest.mark.usefixtures("script")

NONE: Mapping[str, str] = MappingProxyType({})


def test_defaults() -> None:
    """A script alone: everything else is a default, and says so."""
    resolved = describe("train.py")

    job = resolved.job
    assert job.nnodes == Fact(1, "default")
    assert job.node_rank == Fact(None, "default")
    assert job.tasks == Fact(None, "default")
    assert job.hosts == Fact((), "default")
    assert job.cluster == Fact("none", "default")
    assert job.port_candidates == Fact((), "default")
    assert job.rdzv_endpoint == Fact(None, "default")
    assert job.rdzv_timeout == Fact(600.0, "default")
    assert job.token == Fact(None, "default")
    assert job.strict_join == Fact(value=False, origin="default")
    assert job.exec == Fact(value=False, origin="default")
    assert job.nproc_per_node == Fact(WorkerCount.PER_GPU, "default")
    assert job.master_addr == Fact(None, "default")
    assert job.master_port == Fact(None, "default")
    assert job.run_id == Fact("chosen", "default")
    assert job.max_restarts == Fact(0, "default")
    assert job.shutdown_timeout == Fact(25.0, "default")
    assert job.numa_binding == Fact(NumaBinding.AUTO, "default")
    assert job.log_dir == Fact(None, "default")
    assert job.env == {}
    assert resolved == Resolved(
        job,
        unset=(),
        warnings=(),
        dry_run=False,
        as_json=False,
        machine_root=Fact(None, "default"),
        allowed_cpus=Fact(None, "default"),
        capture=Fact(None, "default"),
        verbose=False,
    )


@given(speakers=st.sets(st.sampled_from(["flag", "CLUSTERRUN_", "PET_", "file"])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_strongest_source_wins(speakers: set[str]) -> None:
    """Flags > CLUSTERRUN_* > PET_* > the job file > defaults, whoever else speaks."""
    Path("job.yaml").write_text("\nmax_restarts: 4\n" if "file" in speakers else "")
    flags = {"config": "job.yaml"} | ({"max_restarts": "1"} if "flag" in speakers else {})
    variables = {"CLUSTERRUN_": "2", "PET_": "3"}
    environ = {f"{name}MAX_RESTARTS": variables.get(name, "") for name in sorted(speakers)}

    found = describe("train.py", flags=flags, environ=environ).job.max_restarts

    order = {
        "flag": Fact(1, "--max-restarts"),
        "CLUSTERRUN_": Fact(2, "CLUSTERRUN_MAX_RESTARTS"),
        "PET_": Fact(3, "PET_MAX_RESTARTS"),
        "file": Fact(4, "job.yaml:2 max_restarts"),
    }
    spoken = [fact for name, fact in order.items() if name in speakers]
    assert found == next(iter(spoken), Fact(0, "default"))


def test_variables_of_the_job_are_merged_by_name() -> None:
    """Each name is settled by itself: --env beats CLUSTERRUN_ENV, that PET_ENV, that the file."""
    Path("job.yaml").write_text("env:\n  A: file\n  B: file\n  C: file\n  D: no\n")
    environ = {"CLUSTERRUN_ENV": "A=ours\nB=ours", "PET_ENV": "A=pet\nB=pet\nC=pet"}

    env = describe(
        "train.py", flags={"config": "job.yaml", "env": ("A=x", "A=flag")}, environ=environ
    ).job.env

    assert env == {
        "A": Fact("flag", "--env"),
        "B": Fact("ours", "CLUSTERRUN_ENV"),
        "C": Fact("pet", "PET_ENV"),
        "D": Fact("no", "job.yaml:5 env.D"),
    }


def test_a_job_file_describes_a_whole_job() -> None:
    """Given alone, it names the script and its arguments too; a variable can name the file."""
    Path("job.yaml").write_text(
        "script: train.py\nargs: [--lr, 010]\nnproc_per_node: 2\nnuma_binding: none\n"
        "dry_run: yes\nverbose: 1\n"
    )

    resolved = describe(environ={"CLUSTERRUN_CONFIG": "job.yaml"})

    program = Program(ProgramKind.SCRIPT, "train.py", ("--lr", "010"))
    assert resolved.job.program == Fact(program, "job.yaml:1 script")
    assert resolved.job.nproc_per_node == Fact(2, "job.yaml:3 nproc_per_node")
    assert resolved.job.numa_binding == Fact(NumaBinding.NONE, "job.yaml:4 numa_binding")
    assert resolved.dry_run
    assert resolved.verbose


@pytest.mark.parametrize("named", ["script: ./run\nno_python: yes", "module: pkg.other"])
def test_a_script_on_the_command_line_replaces_the_files(named: str) -> None:
    """Name, arguments and the way to run it go together; other keys hold."""
    Path("job.yaml").write_text(f"{named}\nargs: [--old]\nmax_restarts: 1\n")

    job = describe("train.py", "--new", flags={"config": "job.yaml"}).job

    program = Program(ProgramKind.SCRIPT, "train.py", ("--new",))
    assert job.program == Fact(program, "command line")
    assert job.max_restarts.value == 1


def test_a_module_of_the_file() -> None:
    """``module: NAME`` is ``-m NAME``."""
    Path("job.yaml").write_text("module: pkg.train\n")

    program = describe(flags={"config": "job.yaml"}).job.program.value

    assert program == Program(ProgramKind.MODULE, "pkg.train", ())


def test_a_captured_machine_is_planned_for(folder: Path) -> None:
    """What goes with a dry run is handed on as it is."""
    root, cpus = str(folder), "0-3,8"
    flags: Flags = {"dry_run": True, "json": True, "machine_root": root, "allowed_cpus": cpus}

    resolved = describe("train.py", flags=flags)

    assert (resolved.dry_run, resolved.as_json) == (True, True)
    assert resolved.machine_root == Fact(folder, "--machine-root")
    assert resolved.allowed_cpus == Fact(CpuSet.parse(cpus), "--allowed-cpus")


def test_a_job_that_is_only_looked_at_has_no_program(folder: Path) -> None:
    """Whatever a job file says of one; the rest of it counts."""
    (folder / "job.yaml").write_text("script: missing.py\nnproc_per_node: 3\n")
    flags: Flags = {"config": "job.yaml", "capture": "m.tar.gz", "json": True}

    resolved = resolve(CommandLine(flags, ()), {}, PROCESS, for_topo=True)

    assert resolved.job.nproc_per_node == Fact(3, "job.yaml:2 nproc_per_node")
    assert resolved.job.program.origin == "clusterrun topo"
    assert resolved.capture == Fact(Path("m.tar.gz"), "--capture")
    assert (resolved.dry_run, resolved.as_json) == (True, True)


def test_warnings_are_data() -> None:
    """Unknown variables and misplaced options are told, each in one line."""
    resolved = describe("train.py", "--nnodes", "2", environ={"CLUSTERRUN_NNODE": "1"})

    assert [warning.split()[0] for warning in resolved.warnings] == ["CLUSTERRUN_NNODE", "--nnodes"]


@pytest.mark.parametrize(
    ("flags", "environ", "message", "hint"),
    [
        (
            {},
            {"PET_NNODES": "none"},
            "PET_NNODES: 'none' is not a number of nodes",
            "give a number from 1, or MIN:MAX",
        ),
        (
            {"nproc_per_node": "eight"},
            NONE,
            "--nproc-per-node: 'eight' is not a number of workers",
            "give a number from 1, or auto, gpu or cpu",
        ),
        (
            {"rdzv_id": "a/b"},
            NONE,
            "--rdzv-id: 'a/b' cannot be a run id, which also names a folder",
            "give a word without a /",
        ),
        (
            {},
            {"CLUSTERRUN_DRY_RUN": "2"},
            "CLUSTERRUN_DRY_RUN: '2' is neither yes nor no",
            "give 1 or 0, true or false",
        ),
        (
            {"env": ("A",)},
            NONE,
            "--env: 'A' has no = in it",
            "write NAME=VALUE, such as NCCL_DEBUG=INFO",
        ),
        (
            {"env": ("WORLD_SIZE=2",)},
            NONE,
            "--env: WORLD_SIZE is a variable that clusterrun sets for each worker",
            "leave it out",
        ),
        (
            {"json": True},
            NONE,
            "--json: goes with a dry run or clusterrun topo only",
            "add --dry-run",
        ),
        (
            {},
            {"CLUSTERRUN_JSON": "1"},
            "CLUSTERRUN_JSON: goes with a dry run or clusterrun topo only",
            "add --dry-run",
        ),
        (
            {"machine_root": "."},
            NONE,
            "--machine-root: goes with a dry run or clusterrun topo only",
            "add --dry-run",
        ),
        (
            {"allowed_cpus": "0", "dry_run": True},
            NONE,
            "--allowed-cpus: goes with --machine-root only",
            "to leave a job fewer CPUs of this machine:\n  taskset -c LIST clusterrun ...",
        ),
        (
            {"capture": "m.tar.gz", "dry_run": True},
            NONE,
            "--capture: goes with clusterrun topo only",
            "type clusterrun topo --capture FILE",
        ),
        (
            {"machine_root": "nowhere", "dry_run": True},
            NONE,
            "--machine-root: nowhere does not exist",
            "give a captured machine, its folder or its archive",
        ),
        (
            {"log_dir": "train.py"},
            NONE,
            "--log-dir: train.py exists and is not a folder",
            "give another path",
        ),
        ({"events": "."}, NONE, "--events: . is a folder", "give the path of a file"),
        (
            {"log_dir": ""},
            NONE,
            "--log-dir: the path is empty",
            "give the path of a file or folder",
        ),
        (
            {"config": "jobs.yaml"},
            NONE,
            "--config: jobs.yaml cannot be read: No such file or directory",
            "",
        ),
        (
            {"master_port": "70000"},
            NONE,
            "--master-port: '70000' is not a port",
            "give a number from 1 to 65535, or 0 to have one chosen",
        ),
    ],
)
def test_mistakes(flags: Flags, environ: Mapping[str, str], message: str, hint: str) -> None:
    """Each names where it was said."""
    assert mistake("train.py", flags=flags, environ=environ) == (message, hint)


def test_mistakes_in_a_file_have_line_and_key() -> None:
    """Text goes through the option's own parser, and the complaint says where it stands."""
    Path("job.yaml").write_text("# a job\nshutdown_timeout: 1:30:00\n")

    assert mistake("train.py", flags={"config": "job.yaml"}) == (
        "job.yaml:2 shutdown_timeout: '1:30:00' is not a time in seconds",
        "give a number of seconds, such as 25 or 0.5",
    )


def test_nothing_is_written(folder: Path) -> None:
    """Describing a job with logs leaves the folder as it was."""
    describe("train.py", flags={"log_dir": "logs"})

    assert [path.name for path in folder.iterdir()] == ["train.py"]
