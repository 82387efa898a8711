"""A scheduler as data: the directives of its scripts, its commands, and how its answers are read."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct

from clusterrun.clients.submit.submission import Submission
from clusterrun.errors import MachineError, UsageError
from clusterrun.job.declaring import spell
from clusterrun.job.job_file import ALL_SCHEDULERS
from clusterrun.job.this_process import Answer, ask

SECONDS_TO_ANSWER = 60.0
"""A controller that starts or is overloaded takes this long to queue a job."""

NO_ANSWER = (
    "unable to contact",
    "unable to connect",
    "cannot connect",
    "connection to the server",
    "timed out on send/recv",
    "could not establish a configuration source",
    "lsf is down",
)
"""Words of a scheduler's command that has reached no server, in lower case."""

Ask = Callable[..., Answer]
"""Runs a command of the scheduler: takes its words and, if it reads any, its standard input."""


class NoSchedulerAnswer(Exception):
    """The scheduler does not answer; the message is its own."""


class JobPhase(Enum):
    """The part of its life that a job is in; one that is started again waits once more."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class JobState(Struct, frozen=True):
    """The state of a job, or of one of the jobs of an array."""

    job_id: str
    phase: JobPhase
    words: str
    """The scheduler's own: ``PENDING (Resources)``."""
    exit_code: int = 0
    """Once it has ended: the job's own, or what stands for the reason of its end."""
    output: Path | None = None
    """Where the scheduler writes its standard output; None: unknown."""
    error: Path | None = None
    """None: unknown, or the same file."""


Directive = Callable[[Submission], str | None]
"""Returns a directive without its mark, ``--time=02:00:00``; None if the job needs none."""


def with_value(start: str, value: Callable[[Submission], object]) -> Directive:
    """Return the directive that begins with ``start`` and ends with a value, if that is set."""
    return lambda job: f"{start}{found}" if (found := value(job)) else None


def when(words: str, holds: Callable[[Submission], bool]) -> Directive:
    """Return the directive of a job for which something ``holds``."""
    return lambda job: words if holds(job) else None


OF_A_SHELL = {"image", "mounts", "setup", "directive"}
"""Fields of a request that every batch script has lines for, whatever its scheduler."""


class Batch(Struct, frozen=True):
    """How a batch script is written."""

    mark: str
    """What its directives begin with: ``#SBATCH``."""
    by_hand: str
    """What a person types to submit it."""
    directives: Mapping[str, Directive]
    """In their order, by the field of the request that each is for, or by another name."""
    start: Callable[[Submission], Sequence[str]]
    """Returns the lines that prepare the first node, and start an agent on each."""

    @property
    def fields(self) -> Collection[str]:
        """Return the fields of a request that it has words for."""
        return self.directives.keys() | OF_A_SHELL

    def text(self, job: Submission) -> str:
        head = [
            "#!/usr/bin/env bash",
            f"# Written by clusterrun submit. Edit it as you like; to submit it: {self.by_hand}",
        ]
        lines = [line for directive in self.directives.values() if (line := directive(job))]
        for text in job.request.directive:
            # Of two marks, the second would make the line a comment.
            own = text.strip().removeprefix(self.mark).strip()
            if len(own.splitlines()) > 1:
                raise UsageError(
                    f"{job.origins['directive']}: {own!r} is not one line",
                    "give one line; repeat it for more",
                )
            lines.append(own)
        marked = [f"{self.mark} {line}" for line in lines]
        return "\n".join([*head, *marked, "", *self.start(job), ""])


class Manifest(Struct, frozen=True):
    """How objects are described."""

    fields: Collection[str]
    """The fields of a request that it has words for."""
    text: Callable[[Submission], str]


class Scheduler(Struct, frozen=True):
    """One scheduler. A field of a request that its body has no words for is refused."""

    name: str
    """As ``--to`` has it."""
    title: str
    """As people write it."""
    body: Batch | Manifest
    submit: tuple[str, ...]
    """The command that reads the text from standard input and queues the job."""
    cancel: Callable[[str], Sequence[str]]
    """Returns the command that ends the job of an id."""
    see: str
    """What its users type to see a job, before the id."""
    instead: Mapping[str, str] = {}
    """Fields without words: what to type in their place, with VALUE for what was typed."""
    blamed: Mapping[str, Sequence[str]] = {}
    """Words of its refusals, in lower case, and the fields that they concern."""
    check: tuple[str, ...] = ()
    """The command that reads what ``submit`` reads, and queues nothing; () if there is none."""
    read_id: Callable[[str, Submission], str] = lambda printed, _job: last_line(printed)
    """Returns the id of a job from what ``submit`` has printed; "" if it has none."""
    states: Callable[[str, Ask], tuple[JobState, ...]] | None = None
    """Returns the state of a job, or of each of an array, () if it is unknown; raises ``NoSchedulerAnswer``.
    None: what its commands print of jobs is not read."""
    show: Callable[[str], Sequence[str]] = lambda _id: ()
    """Returns the command that shows what a job prints; () if it prints to files."""
    complete: Callable[[Submission, Ask], Submission] = lambda job, _ask: job
    """Returns the job with what this cluster's nodes say of values that are not set."""


def last_line(printed: str) -> str:
    """Return the last line, without blanks around it: a cluster may print its news first."""
    return printed.strip().rpartition("\n")[2].strip()


def asking(environ: Mapping[str, str]) -> Ask:
    """Return what runs a scheduler's commands in this environment."""
    return lambda words, stdin="": ask(words, environ, stdin, SECONDS_TO_ANSWER)


def text_of(scheduler: Scheduler, job: Submission) -> str:
    """Return the script or the manifest of ``job``; the same for equal jobs.

    Raises:
        UsageError: the scheduler has nothing for what is asked; the message begins with where.

    """
    for name, origin in job.origins.items():
        # False asks for nothing.
        if name not in scheduler.body.fields and getattr(job.request, name) is not False:
            raise UsageError(
                f"{origin}: {scheduler.title} has nothing for {name}",
                _in_place_of(scheduler, name, spell(getattr(job.request, name)), origin),
            )
    return scheduler.body.text(job)


def _in_place_of(scheduler: Scheduler, name: str, value: str, origin: str) -> str:
    if found := scheduler.instead.get(name):
        return found.replace("VALUE", value)
    if f" {ALL_SCHEDULERS}." in origin:
        return "put it into the section of the scheduler that it is for"
    return "leave it out"


def submit(scheduler: Scheduler, job: Submission, text: str, ask: Ask) -> str:
    """Submit ``text``, and return the job's id.

    Raises:
        UsageError: the scheduler refuses the job, and the hint has the values that it refuses; or it
            does not answer.
        MachineError: it has taken the job, and has not said its id.

    """
    if scheduler.check:
        _expect_accepted(scheduler, job, ask(scheduler.check, text))
    answer = ask(scheduler.submit, text)
    _expect_accepted(scheduler, job, answer)
    if not (job_id := scheduler.read_id(answer.out, job)):
        said = " ".join(f"{answer.out} {answer.err}".split())
        raise MachineError(
            f"{scheduler.title} has taken the job, and its id is unknown: {said or 'nothing printed'}",
            f"to find it by its name, {job.job_name}, type {scheduler.see.split()[0]}",
        )
    return job_id


def _expect_accepted(scheduler: Scheduler, job: Submission, answer: Answer) -> None:
    if answer.code == 0:
        return
    refusal = " ".join(answer.trouble.split())
    if answer.code is None or any(words in refusal.lower() for words in NO_ANSWER):
        raise _no_answer(scheduler, refusal)
    blamed = [
        name
        for words, names in scheduler.blamed.items()
        if words in refusal.lower()
        for name in names
        if name in job.origins
    ]
    raise UsageError(
        f"{scheduler.title} refuses the job: {refusal}",
        "\n".join(f"{name} is set by {job.origins[name]}" for name in dict.fromkeys(blamed)),
    )


def expect_known(scheduler: Scheduler, job_id: str, ask: Ask) -> tuple[JobState, ...]:
    """Return the states of a job.

    Raises:
        UsageError: the scheduler has no such job, does not answer, or is one that is not read.

    """
    if scheduler.states is None:
        raise UsageError(
            f"clusterrun does not read what {scheduler.title} says of its jobs",
            f"type {scheduler.see} {job_id}",
        )
    try:
        states = scheduler.states(job_id, ask)
    except NoSchedulerAnswer as error:
        raise _no_answer(scheduler, error) from None
    if not states:
        raise UsageError(f"{scheduler.title} knows no job {job_id}", "check the id, and --to")
    return states


def _no_answer(scheduler: Scheduler, own_words: object) -> UsageError:
    words = " ".join(str(own_words).split())
    return UsageError(f"{scheduler.title} does not answer: {words}", "try again later")


def cancel(scheduler: Scheduler, job_id: str, ask: Ask) -> str:
    """Have a job ended; return what was done.

    Raises:
        UsageError: there is no such job, or the scheduler refuses.

    """
    if scheduler.states is not None:
        states = expect_known(scheduler, job_id, ask)
        if all(state.phase is JobPhase.ENDED for state in states):
            return f"job {job_id} had ended before: {states[0].words}"
    answer = ask(scheduler.cancel(job_id))
    if answer.code != 0:
        refusal = " ".join(answer.trouble.split())
        raise UsageError(f"{scheduler.title} does not end job {job_id}: {refusal}")
    return f"{scheduler.title} ends job {job_id}"
