"""The status of a running job, from one or two looks at it."""

from clusterrun.control.messages import Description
from clusterrun.domain.looks import JobLook
from clusterrun.report.job_status import JobStatus, rank_behind, shown_nodes


def status_of(
    known: Description, first: JobLook, second: JobLook | None, seconds: float
) -> JobStatus:
    """Return the status by the later look; CPU use is that between the two, ``seconds`` apart."""
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
        behind=rank_behind(nodes),
    )
