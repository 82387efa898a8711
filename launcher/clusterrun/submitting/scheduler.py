"""What clusterrun knows of a batch scheduler."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from clusterrun.domain.submissions.job_state import JobState
from clusterrun.domain.submissions.submission import Submission
from clusterrun.submitting.asking import Answer, ask


class NoAnswer(Exception):
    """The scheduler does not answer; the message is its own."""


Ask = Callable[[Sequence[str]], Answer]
"""Runs a command of the scheduler."""


class Scheduler(ABC):
    """One scheduler: its script, and its commands."""

    name: ClassVar[str]
    """As ``--to`` has it."""
    title: ClassVar[str]
    """As people write it."""
    has_secrets: ClassVar[bool] = False
    """Each of its scripts has a secret."""
    check: ClassVar[tuple[str, ...]] = ()
    """The command that reads what ``submit`` reads, and queues nothing; () if there is none."""
    submit: ClassVar[tuple[str, ...]]
    """The command that reads a script from standard input and queues it."""
    blamed: ClassVar[Mapping[str, tuple[str, ...]]]
    """Words of the scheduler's refusals, in lower case, and the fields of a job that they concern."""

    def ask(self, words: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> Answer:
        """Run a command of the scheduler; it never raises."""
        return ask(words, environ, stdin)

    def complete(self, job: Submission, _ask: Ask) -> Submission:
        """Return ``job`` with what this cluster's nodes say of values that are not set."""
        return job

    @abstractmethod
    def script(self, job: Submission) -> str:
        """Return the batch script; the same for equal jobs.

        Raises:
            UsageError: the scheduler has nothing of what an option asks for.

        """

    @abstractmethod
    def read_id(self, printed: str, job: Submission) -> str:
        """Return the id of ``job`` from what ``submit`` has printed."""

    @abstractmethod
    def states(self, job_id: str, ask: Ask) -> tuple[JobState, ...]:
        """Return the state of a job, or of each job of an array; () if it is unknown.

        Raises:
            NoAnswer: the scheduler does not answer; it may do so later.

        """

    def show_output(self, _job_id: str, _environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command that shows what a job prints; () if it prints to files."""
        return ()

    @abstractmethod
    def cancel(self, job_id: str) -> tuple[str, ...]:
        """Return the command that ends a job."""
