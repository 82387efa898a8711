"""A real Slurm: a controller and nodes with two CPUs and four GPUs each."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.contract.launched import Ended, Job
from tests.hosts.network import Network
from tests.hosts.slurm_files import write_files
from tests.needs import need
from tests.waiting import SECONDS_TO_ACT, wait_until

SECONDS_TO_BE_SCHEDULED = 20
"""Without a limit, a missing node would leave a job in the queue for ever."""

CLUSTERRUN_ON_PATH = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
"""For batch scripts that call ``clusterrun``."""


@dataclass(frozen=True)
class BatchJob:
    """A job that ``sbatch`` has queued: its number and the files that it prints to."""

    number: int
    out: Path
    err: Path


class Slurm:
    """The commands of a user on the host ``ctl``, each with a time limit."""

    def __init__(self, where: Network, proctrack: str = "linuxproc") -> None:
        """Create a Slurm on an unused network; its hosts become the nodes.

        With ``proctrack`` "linuxproc" it sends signals to all processes of a step; with "pgid" to the
        tasks alone, as "cgroup" does on most clusters.
        """
        self._proctrack = proctrack
        self.nodes = where.hosts
        self._controller = where.switch
        self._folder = where.folder
        self._conf = where.folder / "slurm.conf"
        self._jobs: list[Job] = []
        self._requeues: Counter[int] = Counter()
        self._read_of_logs: dict[Path, int] = {}

    def open(self) -> None:
        """Start the daemons and wait until all nodes have registered.

        Raises:
            AssertionError: a daemon has ended or is late; the message is what it printed.

        """
        need("munged", "slurmctld", "slurmd", "srun")
        munged = write_files(self._folder, self._controller, self.nodes, self._proctrack)
        self._controller.start(*munged).wait_for("Created socket")
        self._daemon = self._controller.start("slurmctld", "-D", environ=self._environ)
        # A slurmd that finds no controller waits a second or more before it tries again.
        self._daemon.wait_for("Running as primary controller")
        for node in self.nodes:
            node.start("slurmd", "-D", "-N", node.name, environ=self._environ)
        self._daemon.wait_for(r"node \S+ registered with", times=len(self.nodes))
        self._ends = self._controller.start("tail", "-n", "+1", "-f", str(self._folder / "ends"))
        # The daemons' output is not read any more, and a full pipe would stop them.
        self._scontrol("setdebug", "info")

    def around(self, *options: str) -> tuple[str, ...]:
        """The words before a command that make it a step: ``srun OPTIONS``."""
        variables = [f"{name}={value}" for name, value in self._environ.items()]
        srun = ("srun", f"--immediate={SECONDS_TO_BE_SCHEDULED}", *options)
        return (*self._controller.around, "env", *variables, *srun)

    def start(
        self, *words: str, environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Job:
        """Start a command that uses this Slurm; arguments as for ``Host.start``."""
        variables = {**self._environ, **(environ or {})}
        self._jobs.append(self._controller.start(*words, environ=variables, folder=folder))
        return self._jobs[-1]

    def run(self, *words: str, seconds: float = SECONDS_TO_ACT) -> Ended:
        """Run a command that uses this Slurm, such as ``scontrol requeue 7``."""
        return self.start(*words).ended(seconds)

    def start_srun(
        self, *words: str, environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> Job:
        """Start ``srun WORDS``; its processes on the nodes are part of the job."""
        srun = ("srun", f"--immediate={SECONDS_TO_BE_SCHEDULED}")
        return self.start(*srun, *words, environ=environ, folder=folder)

    def srun(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        seconds: float = SECONDS_TO_ACT,
    ) -> Ended:
        """Run ``srun WORDS``."""
        return self.start_srun(*words, environ=environ, folder=folder).ended(seconds)

    def sbatch(
        self,
        script: str,
        *options: str,
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> BatchJob:
        """Queue a batch script.

        Args:
            script: its text, from ``#!`` on, indented as suits the test.
            options: for sbatch, on top of what the script says.
            args: for the script.
            environ: variables on top of the tests' own.
            folder: where it runs; None for where the tests do.

        """
        file = self._folder / f"batch{len(self._jobs)}.sh"
        out, err = file.with_suffix(".out"), file.with_suffix(".err")
        file.write_text(dedent(script).lstrip())
        # Slurm makes these only when the job starts, which it may never do, and may append to them.
        out.write_text("")
        err.write_text("")
        words = ("--parsable", f"--output={out}", f"--error={err}", *options, str(file), *args)
        done = self.start("sbatch", *words, environ=environ, folder=folder).ended()
        assert done.code == 0, done.err
        return BatchJob(int(done.out), out, err)

    def follow(self, job: BatchJob) -> Job:
        """Return a job that prints a batch job's output as it appears, for ``wait_for``."""
        return self.start("tail", "--quiet", "-n", "+1", "-f", str(job.out), str(job.err))

    def ended(self, job: BatchJob) -> Ended:
        """Wait for the end of a batch job; its exit code is -N if signal N killed it."""
        return Ended(self.end_of(job.number), job.out.read_text(), job.err.read_text())

    def end_of(self, number: int) -> int:
        """Wait for the end of a batch job; return its exit code, -N if signal N killed it."""
        # An end as PENDING is a requeue.
        pattern = rf"job {number} (?!PENDING)\w+ (\d+:\d+)\n"
        (how,) = self._ends.wait_for(pattern)
        code, by_signal = map(int, how.split(":"))
        return -by_signal or code

    def cancel(self, job: BatchJob) -> None:
        """``scancel`` a batch job."""
        done = self.run("scancel", str(job.number))
        assert done.code == 0, done.err

    def start_again(self, job: BatchJob) -> None:
        """Start a requeued job without the two minutes that Slurm lets it wait."""
        # Not at once: a job that starts in the second of its end may take that end for its own.
        self._requeues[job.number] += 1
        pattern = rf"Requeuing JobId={job.number}\n"
        self._daemon.wait_for(pattern, times=self._requeues[job.number])
        self._scontrol("update", f"JobId={job.number}", "StartTime=now+2")

    def end_jobs(self) -> None:
        """End all jobs and leave the nodes idle."""
        if left := self._in_queue():
            # Steps first: a step whose srun was killed takes seconds to notice.
            self.run("scancel", "--signal=KILL", "--full", *left)
            self.run("scancel", *left)
            self._ends.wait_for(rf"job (?:{'|'.join(left)}) (?!PENDING)", times=len(left))
            # Nodes of a job that has ended are not idle before its last step is gone.
            wait_until(lambda: not self._in_queue(), "an empty queue")
        for job in self._jobs:
            job.kill_all()
        self._jobs.clear()

    def new_logs(self) -> str:
        """Return what the daemons have logged since the last call."""
        logs = sorted(self._folder.glob("slurm*.log"))
        return "\n".join(f"--- {log.name}\n{self._new(log)}" for log in logs)

    def _in_queue(self) -> list[str]:
        return self.run("squeue", "--noheader", "--format=%A").out.split()

    def _scontrol(self, *words: str) -> None:
        done = self.run("scontrol", *words)
        assert done.code == 0, done.err

    @property
    def _environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self._conf)}

    def _new(self, log: Path) -> str:
        with log.open("rb") as opened:
            opened.seek(self._read_of_logs.get(log, 0))
            text = opened.read()
            self._read_of_logs[log] = opened.tell()
        return text.decode(errors="replace")
