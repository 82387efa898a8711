"""The command line from end to end: what was typed -> exit code."""

from collections.abc import Mapping, Sequence

from clusterrun.cli.commands import RUN, find_command
from clusterrun.cli.entry import say_nothing_on_signals
from clusterrun.cli.printing import complain, print_text
from clusterrun.cli.printing_options import OVERVIEW, PRINTING, Printing
from clusterrun.errors import ExitCode, LauncherError, exit_code_of_signal
from clusterrun.job.sources import CommandLine


def run_command_line(
    argv: Sequence[str], environ: Mapping[str, str], called: str = "clusterrun"
) -> int:
    """Do what ``argv``, the words after the program's name, ask for; return the exit code."""
    command = RUN
    try:
        # As click names the variable by which a shell asks.
        if instruction := environ.get(f"_{called.upper()}_COMPLETE"):
            from clusterrun.cli.completion import completions

            return print_text(completions(instruction, called, environ))
        command, line = find_command(argv, called)
        if not PRINTING.keys().isdisjoint(line.options):
            return _print(line, called)
        if command is not RUN:
            say_nothing_on_signals()
        return command.load()(line, environ, called)
    except LauncherError as error:
        complain(command.as_typed(error.explain()))
        return error.exit_code
    except BrokenPipeError:
        # The reader of our standard output has seen enough.
        return exit_code_of_signal(13)
    except Exception as error:  # noqa: BLE001 - the last resort: a bug of ours, and its own exit code
        return explain_unexpected(error)


def _print(line: CommandLine, called: str) -> int:
    """Print what an option of ``PRINTING`` asks for, the first of several."""
    say_nothing_on_signals()
    asked = line.read(Printing)
    if "help" in line.options:
        from clusterrun.cli.help import help_text

        return print_text(help_text(asked.help or OVERVIEW))
    if asked.version:
        from clusterrun.cli.version import version_text

        return print_text(version_text())
    from clusterrun.cli.completion import completion_script

    return print_text(completion_script(asked.print_completion, called))


def explain_unexpected(error: Exception) -> int:
    """Print an error that no part of clusterrun has expected; return the exit code."""
    from clusterrun.cli.limits import limit_behind

    if limit := limit_behind(error):
        complain(limit.explain())
        return limit.exit_code
    import traceback

    text = "".join(traceback.format_exception(error))
    complain(f"{text}clusterrun: error: this is a bug of clusterrun's own")
    return ExitCode.INTERNAL
