"""Submits a batch script, and ends the job."""

from collections.abc import Callable, Iterator, Sequence

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.domain.submissions.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.submitting.asking import Answer
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler


def submit(
    scheduler: Scheduler, job: Submission, text: str, ask: Callable[[Sequence[str], str], Answer]
) -> str:
    """Submit ``text``, and return the job's id; ``ask`` runs a command with a standard input.

    Raises:
        UsageError: the scheduler refuses the job.

    """
    if scheduler.check:
        expect_accepted(scheduler, job, ask(scheduler.check, text))
    return queue(scheduler, job, ask(scheduler.submit, text))


def queue(scheduler: Scheduler, job: Submission, answer: Answer) -> str:
    """Return the id of ``job`` from the ``answer`` of the command that submits.

    Raises:
        UsageError: the scheduler refuses the job.

    """
    expect_accepted(scheduler, job, answer)
    return scheduler.read_id(answer.out, job)


def expect_accepted(scheduler: Scheduler, job: Submission, answer: Answer) -> None:
    """Check that the scheduler has taken the job.

    Raises:
        UsageError: the scheduler refuses the job; the message has the values that it refuses.

    """
    if answer.code:
        refusal = " ".join(answer.trouble.split())
        raise UsageError(
            f"{scheduler.title} refuses the job: {refusal}",
            "\n".join(_blamed(scheduler, job, refusal.lower())),
        )


def _blamed(scheduler: Scheduler, job: Submission, refusal: str) -> Iterator[str]:
    """Yield the values that a refusal may be about, each with its origin."""
    names = [
        name for words, names in scheduler.blamed.items() if words in refusal for name in names
    ]
    for name in dict.fromkeys(names):
        fact = getattr(job, name, None) or getattr(job.pods, name)
        if isinstance(fact, Fact) and fact.origin != "default":
            yield f"{name} is set by {fact.origin}"


def expect_known(scheduler: Scheduler, job_id: str, ask: Ask) -> tuple[JobState, ...]:
    """Return the states of a job.

    Raises:
        UsageError: the scheduler has no such job, or does not answer.

    """
    try:
        states = scheduler.states(job_id, ask)
    except NoAnswer as error:
        raise UsageError(f"{scheduler.title} does not answer: {error}", "try again later") from None
    if not states:
        raise UsageError(f"{scheduler.title} knows no job {job_id}", "check the id, and --to")
    return states


def cancel(scheduler: Scheduler, job_id: str, ask: Ask) -> str:
    """Have a job ended; return what was done.

    Raises:
        UsageError: there is no such job, or the scheduler refuses.

    """
    states = expect_known(scheduler, job_id, ask)
    if all(state.phase is Phase.ENDED for state in states):
        return f"job {job_id} had ended before: {states[0].words}"
    answer = ask(scheduler.cancel(job_id))
    if answer.code:
        refusal = " ".join(answer.trouble.split())
        raise UsageError(f"{scheduler.title} does not end job {job_id}: {refusal}")
    return f"{scheduler.title} ends job {job_id}"
