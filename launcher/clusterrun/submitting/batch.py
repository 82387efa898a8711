"""Submits a batch script."""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.domain.submissions.submission import Submission
from clusterrun.errors import UsageError
from clusterrun.submitting.asking import Answer
from clusterrun.submitting.scheduler import Scheduler


def queue(scheduler: Scheduler, job: Submission, answer: Answer) -> str:
    """Return the id of ``job`` from the ``answer`` of the command that submits.

    Raises:
        UsageError: the scheduler refuses the job; the message has the values that it refuses.

    """
    if answer.code:
        refusal = " ".join(answer.trouble.split())
        raise UsageError(
            f"{scheduler.title} refuses the job: {refusal}",
            "\n".join(_blamed(scheduler, job, refusal.lower())),
        )
    return scheduler.read_id(answer.out)


def _blamed(scheduler: Scheduler, job: Submission, refusal: str) -> Iterator[str]:
    """Yield the values that a refusal may be about, each with its origin."""
    names = [
        name for words, names in scheduler.blamed.items() if words in refusal for name in names
    ]
    for name in dict.fromkeys(names):
        fact = getattr(job, name)
        if isinstance(fact, Fact) and fact.origin != "default":
            yield f"{name} is set by {fact.origin}"
