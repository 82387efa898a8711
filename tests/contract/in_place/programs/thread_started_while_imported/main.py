"""A local module starts a thread while it is imported: it runs."""

import starts

print(starts.QUEUE.get(timeout=5), starts.THREAD.is_alive(), starts.THREAD.name)
