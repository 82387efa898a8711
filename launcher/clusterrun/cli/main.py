"""The command line from end to end: what was typed -> exit code."""

import errno
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.cli.commands import RUN, Execute, find_command, named
from clusterrun.cli.entry import exit_silently_on_signals
from clusterrun.cli.printing import complain, print_text
from clusterrun.cli.splitting import OVERVIEW, PRINTING, Printing
from clusterrun.errors import ExitCode, LauncherError, MachineError, exit_code_of_signal
from clusterrun.job.file_kinds import FOLDER_DELETED, is_current_folder_deleted
from clusterrun.job.sources import CALLER_VARIABLE, CommandLine

if TYPE_CHECKING:
    from clusterrun.run.caller import CallingProgram

ANOTHER_FOLDER = "change to one that exists"


def run_command_line(
    argv: Sequence[str], environ: Mapping[str, str], called: str = "clusterrun"
) -> int:
    """Do what ``argv``, the words after the program's name, ask for; return the exit code."""
    command = RUN
    caller: CallingProgram | None = None
    try:
        if CALLER_VARIABLE in environ:
            caller = _calling_program(environ[CALLER_VARIABLE])
            environ = {name: environ[name] for name in environ if name != CALLER_VARIABLE}
        # As click names the variable by which a shell asks.
        if instruction := environ.get(f"_{called.upper()}_COMPLETE"):
            from clusterrun.cli.completion import completions

            return print_text(completions(instruction, called, environ))
        command, line = find_command(argv, called)
        if not PRINTING.keys().isdisjoint(line.options):
            return _print(line, called)
        if command is RUN:
            run: Callable[..., int] = named(command.function)
            return run(line, environ, called, caller)
        exit_silently_on_signals()
        execute: Execute = named(command.function)
        return execute(line, environ, called)
    except LauncherError as error:
        if caller is not None:
            caller.refused(_with_reason(error))
        else:
            complain(*command.as_typed(_with_reason(error).explain()).split("\n"))
        return error.exit_code
    except BrokenPipeError:
        # The reader of our standard output has seen enough.
        return exit_code_of_signal(13)
    except Exception as error:  # noqa: BLE001 - the last resort: a bug of ours, and its own exit code
        return explain_unexpected(error)


def _calling_program(value: str) -> "CallingProgram":
    # Few commands are started by one.
    from clusterrun.run.caller import CallingProgram

    return CallingProgram.of(value)


def _print(line: CommandLine, called: str) -> int:
    """Print what an option of ``PRINTING`` asks for, the first of several."""
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
    """Return clusterrun's version, and Python's and torch's, which workers use unless --python is set."""
    from importlib import metadata

    versions = [f"clusterrun {metadata.version('clusterrun')}", f"Python {sys.version.split()[0]}"]
    try:
        versions.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        versions.append("no torch")
    return ", ".join(versions)


def explain_unexpected(error: Exception) -> int:
    """Print an error that no part of clusterrun has expected; return the exit code."""
    if limit := resource_limit_error(error):
        complain(*limit.explain().split("\n"))
        return limit.exit_code
    import traceback

    lines = "".join(traceback.format_exception(error)).splitlines()
    complain(*lines, "clusterrun: error: this is a bug of clusterrun's own")
    return ExitCode.INTERNAL


def _with_reason(error: LauncherError) -> LauncherError:
    """Return the error with what may be behind it: in a deleted folder, no relative path exists."""
    of_paths = error.exit_code in {ExitCode.USAGE, ExitCode.MACHINE}
    if of_paths and is_current_folder_deleted() and FOLDER_DELETED not in error.message:
        error.hint = "\n".join(filter(None, (f"{FOLDER_DELETED}: {ANOTHER_FOLDER}", error.hint)))
    return error


def resource_limit_error(error: BaseException) -> MachineError | None:
    """Return what this machine lacks that caused ``error``; None if it lacks nothing.

    It is a limit, with its value, or the current folder.
    """
    for cause in _chain(error):
        if isinstance(cause, FileNotFoundError) and is_current_folder_deleted():
            return MachineError(FOLDER_DELETED, ANOTHER_FOLDER)
        if isinstance(cause, MemoryError) or _number(cause) == errno.ENOMEM:
            return MachineError(
                "there is not enough memory on this machine, or in this cgroup",
                "end other processes, or ask the scheduler for more memory",
            )
        if _number(cause) == errno.EMFILE:
            import resource

            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return MachineError(
                f"too many open files: this process may have {soft} (ulimit -n)",
                "raise the limit: ulimit -n 4096; Docker has --ulimit nofile=4096,"
                " systemd LimitNOFILE=4096",
            )
        if _number(cause) == errno.ENFILE:
            most = Path("/proc/sys/fs/file-max").read_text(encoding="ascii").strip()
            return MachineError(
                f"too many open files: this machine may have {most} (sysctl fs.file-max)",
                f"raise the limit as root: sysctl -w fs.file-max={2 * int(most)}",
            )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _number(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None
