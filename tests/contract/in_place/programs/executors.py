"""Pools of concurrent.futures, of processes and of threads."""

import concurrent.futures
import multiprocessing
import threading


def name(_number):
    return __name__


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(method, list(pool.map(name, range(2))))
    pool = concurrent.futures.ThreadPoolExecutor(1)
    print(pool.submit(lambda: threading.current_thread().name).result())
    pool.submit(print, "done by the executor that nobody shut down")
