"""An event loop that a local module made while it was imported runs in the script."""

import asyncio

import makes_loop

print(makes_loop.LOOP.run_until_complete(asyncio.sleep(0.01, "slept")))
makes_loop.LOOP.close()
