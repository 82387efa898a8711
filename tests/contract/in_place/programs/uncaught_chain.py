"""Exceptions with causes, contexts, notes and a tree of them."""

import asyncio
import os


class Failure(Exception):
    def __str__(self):
        return f"failure with {os.sep}"


async def fail(number):
    raise ValueError(number)


async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail(1))
        group.create_task(fail(2))


try:
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise KeyError("second") from error
except KeyError:
    try:
        asyncio.run(main())
    except ExceptionGroup as group:
        failure = Failure()
        failure.add_note("a note")
        raise failure from group
