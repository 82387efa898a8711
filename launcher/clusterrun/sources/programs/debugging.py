"""What can be debugged or profiled: a Python script or module that a file holds."""

from clusterrun.domain.job import JobSpec, Program, ProgramKind
from clusterrun.errors import UsageError


def check_debuggable(job: JobSpec) -> None:
    """Check that the program of a job that is to be debugged or profiled can be.

    Raises:
        UsageError: it is no Python script or module, or standard input has it; or two options exclude
            each other; or there is no folder for a profile.

    """
    asked = [job.debug.origin] if job.debug.value is not None else []
    asked += [job.pdb.origin] if job.pdb.value else []
    asked += [job.profile.origin] if job.profile.value is not None else []
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} cannot be used together", "leave one out")
    if job.profile.value is not None and job.log_dir.value is None:
        raise UsageError(
            f"{job.profile.origin} writes to the log folder, and there is none",
            "give --log-dir DIR",
        )
    if asked:
        _check_program(job.program.value, asked[0])


def _check_program(program: Program, origin: str) -> None:
    if program.kind not in {ProgramKind.SCRIPT, ProgramKind.MODULE}:
        how = "--no-python" if program.kind is ProgramKind.EXECUTABLE else "--run-path"
        raise UsageError(
            f"{origin}: only a Python script or module can be debugged or profiled, and {how} runs"
            f" {program.name}",
            "leave one of the two out",
        )
    if program.is_standard_input:
        raise UsageError(
            f"{origin}: a script on standard input (-) can't be debugged or profiled",
            "save it to a file, and give the file",
        )
