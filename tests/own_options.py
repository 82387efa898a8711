"""Options that only one command takes."""

from clusterrun.cli.commands import COMMANDS

OWN_OPTIONS = {command.word: command.own_rows for command in COMMANDS}
"""By the command's word and their name."""

OPTIONS_OF_COMMANDS = {
    f"{word}.{name}": row for word, rows in OWN_OPTIONS.items() for name, row in rows.items()
}
"""By both, as one text."""
