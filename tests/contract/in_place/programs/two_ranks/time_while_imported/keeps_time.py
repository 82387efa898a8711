import time

TIME = time.time_ns()
