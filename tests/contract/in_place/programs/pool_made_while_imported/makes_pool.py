import multiprocessing

POOL = multiprocessing.get_context("fork").Pool(1)
