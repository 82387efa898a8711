import multiprocessing

MAILBOX = multiprocessing.SimpleQueue()
