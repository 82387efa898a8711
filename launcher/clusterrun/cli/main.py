"""The command line from end to end: what was typed -> exit code."""

from collections.abc import Mapping, Sequence

from clusterrun.cli.commands.table import RUN
from clusterrun.cli.dispatch import find_command
from clusterrun.cli.entry import say_nothing_on_signals
from clusterrun.cli.parsing import completion_variable
from clusterrun.cli.printing import complain, print_text
from clusterrun.errors import ExitCode, LauncherError, exit_code_of_signal


def run_command_line(
    argv: Sequence[str], environ: Mapping[str, str], called: str = "clusterrun"
) -> int:
    """Do what ``argv``, the words after the program's name, ask for; return the exit code."""
    command = RUN
    try:
        if instruction := environ.get(completion_variable(called)):
            from clusterrun.cli.commands.print_completion import completions

            return print_text(completions(instruction, called, environ))
        command, line = find_command(argv, called)
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
        return _explain_unexpected(error)


def _explain_unexpected(error: Exception) -> int:
    from clusterrun.cli.limits import limit_behind

    if limit := limit_behind(error):
        complain(limit.explain())
        return limit.exit_code
    import traceback

    text = "".join(traceback.format_exception(error))
    complain(f"{text}clusterrun: error: this is a bug of clusterrun's own")
    return ExitCode.INTERNAL
