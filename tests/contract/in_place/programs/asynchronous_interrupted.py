"""Ctrl-C in asyncio.run."""

import asyncio
import os
import signal


async def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(5)
    finally:
        print("finally")


asyncio.run(main())
