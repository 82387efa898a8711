"""A group of exceptions is a tree."""

import asyncio


async def fail(number):
    raise ValueError(number)


async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail(1))
        group.create_task(fail(2))


asyncio.run(main())
