import concurrent.futures

EXECUTOR = concurrent.futures.ThreadPoolExecutor(2)
