"""So does a pool of threads, though none of them was there yet."""

import makes_executor

print(makes_executor.EXECUTOR.submit(abs, -3).result())
