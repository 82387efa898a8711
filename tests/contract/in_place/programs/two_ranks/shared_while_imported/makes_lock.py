import multiprocessing

LOCK = multiprocessing.Lock()
