"""asyncio: tasks, subprocesses, signals, threads, an executor's."""

import asyncio
import os
import signal


async def main():
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, told.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await told.wait()
    child = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print(await child.communicate(), child.returncode)
    print(
        await asyncio.to_thread(lambda: 5),
        await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2)),
    )


asyncio.run(main(), debug=False)
print(asyncio.get_event_loop_policy().__class__.__name__)
