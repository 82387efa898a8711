"""Runs a command line from argv to the exit code."""

import errno
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.cli.commands import RUN, Execute, find_command, load_object
from clusterrun.cli.entry import exit_silently_on_signals
from clusterrun.cli.printing import complain, print_text
from clusterrun.cli.splitting import OVERVIEW, PRINTING, Printing
from clusterrun.errors import ExitCode, LauncherError, MachineError, exit_code_of_signal
from clusterrun.job.file_kinds import FOLDER_DELETED, is_current_folder_deleted
from clusterrun.job.sources import CALLER_VARIABLE, CommandLine

if TYPE_CHECKING:
    from clusterrun.run.caller import CallingProgram

CHANGE_FOLDER = "change to one that exists"


def run_command_line(
    argv: Sequence[str], environ: Mapping[str, str], called: str = "clusterrun"
) -> int:
    """Run the command line ``argv``, without the program's name; return the exit code."""
    command = RUN
    caller: CallingProgram | None = None
    try:
        if CALLER_VARIABLE in environ:
            caller = _calling_program(environ[CALLER_VARIABLE])
            environ = {name: environ[name] for name in environ if name != CALLER_VARIABLE}
        # click's name of the variable with which a shell requests completions.
        if instruction := environ.get(f"_{called.upper()}_COMPLETE"):
            from clusterrun.cli.completion import completions

            return print_text(completions(instruction, called, environ))
        command, line = find_command(argv, called)
        if not PRINTING.keys().isdisjoint(line.options):
            return _print_information(line, called)
        if command is RUN:
            run: Callable[..., int] = load_object(command.function)
            return run(line, environ, called, caller)
        exit_silently_on_signals()
        execute: Execute = load_object(command.function)
        return execute(line, environ, called)
    except LauncherError as error:
        if caller is not None:
            caller.refused(_with_reason(error))
        else:
            complain(*command.adapt_hint(_with_reason(error).explain()).split("\n"))
        return error.exit_code
    except BrokenPipeError:
        # As if killed by SIGPIPE, when the reader of our standard output closes it.
        return exit_code_of_signal(13)
    except Exception as error:  # noqa: BLE001 - a bug of ours, which has its own exit code
        return explain_unexpected(error)


def _calling_program(value: str) -> "CallingProgram":
    # Imported here, because few commands have a calling program.
    from clusterrun.run.caller import CallingProgram

    return CallingProgram.of(value)


def _print_information(line: CommandLine, called: str) -> int:
    """Print what an option of ``PRINTING`` requests; if there are several, the first one."""
    exit_silently_on_signals()
    asked = line.read(Printing)
    if "help" in line.options:
        from clusterrun.cli.help import help_text

        return print_text(help_text(asked.help or OVERVIEW))
    if asked.version:
        return print_text(version_text())
    from clusterrun.cli.completion import completion_script

    return print_text(completion_script(asked.print_completion, called))


def version_text() -> str:
    """Return the versions of clusterrun, Python and torch; workers use these unless --python is set."""
    from importlib import metadata

    versions = [f"clusterrun {metadata.version('clusterrun')}", f"Python {sys.version.split()[0]}"]
    try:
        versions.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        versions.append("no torch")
    return ", ".join(versions)


def explain_unexpected(error: Exception) -> int:
    """Print an unexpected error; return the exit code."""
    if limit := resource_limit_error(error):
        complain(*limit.explain().split("\n"))
        return limit.exit_code
    import traceback

    lines = "".join(traceback.format_exception(error)).splitlines()
    complain(*lines, "clusterrun: error: this is a bug in clusterrun")
    return ExitCode.INTERNAL


def _with_reason(error: LauncherError) -> LauncherError:
    """Return the error, with a hint if the current folder was deleted: then no relative path exists."""
    of_paths = error.exit_code in {ExitCode.USAGE, ExitCode.MACHINE}
    if of_paths and is_current_folder_deleted() and FOLDER_DELETED not in error.message:
        error.hint = "\n".join(filter(None, (f"{FOLDER_DELETED}: {CHANGE_FOLDER}", error.hint)))
    return error


def resource_limit_error(error: BaseException) -> MachineError | None:
    """Return the error about a limit, with its value, or a deleted folder that caused ``error``; else None."""
    for cause in _causes(error):
        if isinstance(cause, FileNotFoundError) and is_current_folder_deleted():
            return MachineError(FOLDER_DELETED, CHANGE_FOLDER)
        if isinstance(cause, MemoryError) or _errno(cause) == errno.ENOMEM:
            return MachineError(
                "there is not enough memory on this machine, or in this cgroup",
                "end other processes, or ask the scheduler for more memory",
            )
        if _errno(cause) == errno.EMFILE:
            import resource

            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return MachineError(
                f"too many open files: this process may have {soft} (ulimit -n)",
                "raise the limit: ulimit -n 4096; Docker has --ulimit nofile=4096,"
                " systemd LimitNOFILE=4096",
            )
        if _errno(cause) == errno.ENFILE:
            limit = Path("/proc/sys/fs/file-max").read_text(encoding="ascii").strip()
            return MachineError(
                f"too many open files: this machine may have {limit} (sysctl fs.file-max)",
                f"raise the limit as root: sysctl -w fs.file-max={2 * int(limit)}",
            )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _errno(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None
