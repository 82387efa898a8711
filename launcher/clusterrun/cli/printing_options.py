"""Options that print something and end, whatever else is on the line."""

from typing import Annotated

from msgspec import Struct

from clusterrun.job.declaring import Option, Value, by_any_name, rows_of

OVERVIEW = "overview"
"""What --help shows without a topic."""


class Printing(Struct, frozen=True):
    """The first of several is answered."""

    help: Annotated[
        str,
        Value(str, "[GROUP|all]", alone=OVERVIEW),
        Option("Print this, a group of options, or all", short="h"),
    ] = ""
    version: Annotated[bool, Option("Print the versions of clusterrun, Python and torch")] = False
    print_completion: Annotated[
        str,
        Value(str, "SHELL"),
        Option("Print what completes options in bash, zsh or fish"),
    ] = ""


PRINTING = by_any_name(rows_of(Printing))
