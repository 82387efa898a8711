"""What can be debugged: a Python script or module that a file holds."""

from clusterrun.domain.job import JobSpec, ProgramKind
from clusterrun.errors import UsageError


def check_debuggable(job: JobSpec) -> None:
    """Check that the program of a job that is to be debugged can be.

    Raises:
        UsageError: it is no Python script or module, or standard input has it.

    """
    program, debug = job.program.value, job.debug
    if debug.value is None:
        return
    if program.kind not in {ProgramKind.SCRIPT, ProgramKind.MODULE}:
        how = "--no-python" if program.kind is ProgramKind.EXECUTABLE else "--run-path"
        raise UsageError(
            f"{debug.origin}: only a Python script or module can be debugged, and {how} runs"
            f" {program.name}",
            "leave one of the two out",
        )
    if program.is_standard_input:
        raise UsageError(
            f"{debug.origin}: a script on standard input (-) can't be debugged",
            "save it to a file, and give the file",
        )
