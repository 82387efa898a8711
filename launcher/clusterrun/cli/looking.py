"""The status of a running job, from looks at it."""

import time

from msgspec.structs import replace

from clusterrun.network.control_client import SECONDS_TO_LOOK, AgentGone, NoAnswer, RunningJob, ask
from clusterrun.network.requests import Description
from clusterrun.policy.looks import JobLook, LookAtRanks, MissingNode
from clusterrun.policy.messages import Ask
from clusterrun.report.job_status import JobStatus, rank_behind, shown_nodes


def status_of(
    known: Description, first: JobLook, second: JobLook | None, seconds: float
) -> JobStatus:
    """Return the status by the later look; speeds are those between the two, ``seconds`` apart."""
    nodes, last = shown_nodes(first, second, seconds), second or first
    return JobStatus(
        run_id=known.run_id,
        program=known.program,
        number_of_nodes=known.nodes,
        number_of_ranks=known.ranks,
        running_for=known.running_for,
        nodes=nodes,
        missing=last.missing,
        waiting=last.waiting,
        suspension=last.suspension,
        behind=rank_behind(nodes),
    )


class WatchedJob:
    """A running job that is looked at again and again."""

    def __init__(self, job: RunningJob, first: JobLook) -> None:
        """Take the job, and the first look at it, which was just now."""
        self._job = job
        self._before = first
        self._began = self._looked_at = time.monotonic()
        self.status = status_of(job.described, first, None, 0.0)

    def look_again(self, seconds: float = SECONDS_TO_LOOK) -> bool:
        """Renew the status within ``seconds``; return False once the agent has ended."""
        known = self._job.described
        try:
            now = ask(self._job, Ask(1, LookAtRanks()), JobLook, seconds)
        except AgentGone:
            return False
        except NoAnswer:
            # It is stopped: it may be continued.
            silent = MissingNode(known.node_rank, known.host, "does not answer: nothing is known")
            self.status = replace(self.status, missing=(silent,))
            return True
        at = time.monotonic()
        status = status_of(known, self._before, now, at - self._looked_at)
        self.status = replace(status, running_for=status.running_for + at - self._began)
        self._before, self._looked_at = now, at
        return True
