"""PYTHONTRACEMALLOC traces from the start."""

import tracemalloc

print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
text = "a" * 100_000 + str(tracemalloc)
print(tracemalloc.get_object_traceback(text)[0].lineno)
