"""``clusterrun --print-completion SHELL``: the script that a shell evaluates."""

from collections.abc import Mapping

from clusterrun.cli.completion import completion_script
from clusterrun.cli.printing import print_text
from clusterrun.sources.command_line import CommandLine


def execute(line: CommandLine, _environ: Mapping[str, str], called: str) -> int:
    return print_text(completion_script(str(line.flags["print_completion"]), called))
