"""Exceptions with causes, contexts and notes."""

import os


class Failure(Exception):
    def __str__(self):
        return f"failure with {os.sep}"


try:
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise KeyError("second") from error
except KeyError:
    failure = Failure()
    failure.add_note("a note")
    raise failure
