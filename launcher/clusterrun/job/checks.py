"""Combinations of options that a job cannot have."""

from collections.abc import Iterator

from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job, ProgramKind
from clusterrun.job.options import OPTIONS, OnHang, StartMethod
from clusterrun.job.output import is_log_dir_from_variable
from clusterrun.job.scheduler import is_scheduler_ignored


def check_compatible(job: Job) -> None:
    """Check that the options of the job are compatible.

    Raises:
        UsageError: two of them are not.

    """
    if job.starting.start_method is StartMethod.FORK:
        _check_forkable(job)
    if job.failures.on_hang is not OnHang.REPORT and not job.failures.hang_timeout:
        raise UsageError(
            f"{job.origin('on_hang')}: hangs are not detected, as --hang-timeout is not set",
            "add --hang-timeout SECONDS",
        )
    if job.join.run_id == "latest" and job.files.log_dir and not job.as_torchrun:
        raise UsageError(
            f"{job.origin('run_id')}: latest can't be a run id with {job.origin('log_dir')}:"
            f" {job.files.log_dir}/latest is the link to the last run",
            "give another run id",
        )
    if job.suspending.requeue and job.scheduler is None:
        raise _no_scheduler(job.origin("requeue"), job)
    _check_read_once(job)
    _check_pdb(job)
    if job.starting.exec:
        _check_replaceable(job)


def _no_scheduler(requeue: str, job: Job) -> UsageError:
    if is_scheduler_ignored(job.setting("cluster"), job.origin("standalone")):
        return UsageError(
            f"{requeue} needs the scheduler, but cluster is {job.setting('cluster')}",
            f"remove {requeue}",
        )
    *others, last = (each.scheduler.title for each in CLUSTERS if each.job_variables)
    return UsageError(
        f"{requeue} works only in a job of {', '.join(others)} or {last}, but none of them started"
        " this one",
        f"remove {requeue}, or submit the job to a scheduler",
    )


def _check_forkable(job: Job) -> None:
    """Check that the workers are Python programs that the fork server may run."""
    origin, script = job.origin("start_method"), job.script
    # A file or a variable may set it for many jobs.
    hint = "remove one of the two, or add --start-method auto"
    if script.kind is ProgramKind.EXECUTABLE:
        raise UsageError(
            f"{origin}: only Python scripts and modules can be forked, and --no-python runs"
            f" {script.name}",
            hint,
        )
    for name, is_set in (("pdb", job.failures.pdb), ("exec", job.starting.exec)):
        if is_set:
            raise UsageError(
                f"{origin} is fork, but with {job.origin(name)} the worker is not forked",
                hint,
            )


def _check_read_once(job: Job) -> None:
    """Check that a script on standard input is read only once, by one agent.

    The plan checks that the agent has one worker, because that number depends on the machine.
    """
    if not job.script.is_standard_input:
        return
    if job.agents > 1:
        trouble = f"nnodes is {job.setting('nnodes')}"
    elif job.failures.max_restarts:
        trouble = f"max_restarts is {job.setting('max_restarts')}"
    elif job.starting.start_method is StartMethod.FORK:
        trouble = f"start_method is fork ({job.origin('start_method')})"
    else:
        return
    raise UsageError(
        f"a script on standard input ({job.script.name}) can be read by one worker only, once,"
        f" but {trouble}",
        "save it to a file, and give the file",
    )


def _check_pdb(job: Job) -> None:
    """Check that a job with ``--pdb`` has one node and runs a Python script or module from a file."""
    if not job.failures.pdb:
        return
    origin, script = job.origin("pdb"), job.script
    if job.agents > 1:
        raise UsageError(
            f"{origin} opens pdb on one node, but nnodes is {job.setting('nnodes')}",
            "remove it; in the script, torch.distributed.breakpoint(RANK) stops one rank",
        )
    if script.kind not in {ProgramKind.SCRIPT, ProgramKind.MODULE}:
        how = "--no-python" if script.kind is ProgramKind.EXECUTABLE else "--run-path"
        raise UsageError(
            f"{origin} is for a Python script or module, and {how} runs {script.name}",
            "remove one of the two",
        )
    if script.is_standard_input:
        raise UsageError(
            f"{origin}: pdb can't show a script from standard input ({script.name})",
            "save it to a file, and give the file",
        )


def _check_replaceable(job: Job) -> None:
    """Check that no option needs an agent, which ``--exec`` replaces by the worker.

    The plan checks that there is one worker, because that number depends on the machine.
    """
    for name, setting in _needs_agent(job):
        raise UsageError(
            f"{job.origin('exec')} leaves no agent running, but {name} ({setting.origin}) needs one",
            f"remove one: {job.origin('exec')} or {setting.origin}",
        )
    if job.agents > 1 and job.rendezvous.rdzv_endpoint is not None:
        raise UsageError(
            f"{job.origin('exec')} leaves no agent running, but an agent must listen at"
            f" {job.setting('rdzv_endpoint')}",
            "give --master-addr and --master-port instead",
        )
    if job.agents > 1 and job.agent_rank is None:
        raise UsageError(
            f"{job.origin('exec')} leaves no agent that could join and get a rank",
            "give --node-rank",
        )


def _needs_agent(job: Job) -> Iterator[tuple[str, Setting[object]]]:
    if job.workers.nnodes.minimum != job.nnodes:
        yield "nnodes", job.setting("nnodes")
    # log_dir comes last because other options may have set it.
    for row in sorted(OPTIONS.values(), key=lambda row: row.name == "log_dir"):
        if row.option.needs_agent and not (row.name == "log_dir" and is_log_dir_from_variable(job)):
            setting: Setting[object] = job.setting(row.name)
            # 0 may be a rank; other false values do not set anything.
            if setting.value != row.default and (setting.value or isinstance(setting.value, int)):
                yield row.name, setting
