"""Nodes that use torch's c10d rendezvous, as torchrun's agents do; many in one process.

Each is a thread: processes of their own took longer wherever both were tried.
"""

import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from queue import SimpleQueue
from threading import Event, Thread

STORE = "127.0.0.1"


def store(pipe: Pipe, port: int) -> None:
    """Serve the store of the rendezvous until the pipe is closed."""
    # Only in this process: no other needs torch.
    from torch.distributed import TCPStore

    held = TCPStore(STORE, port, is_master=True, wait_for_workers=False)
    with suppress(EOFError):
        pipe.send(None)
        pipe.recv()
    del held


def meet(pipe: Pipe, count: int, nodes: int, port: int) -> None:
    """Be ``count`` of the nodes; sends when the last of them knew its rank."""
    # Warnings of names without an address, and of connections that end with the benchmark.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # As above; and once, before the clock starts.
    from torch.distributed.elastic.rendezvous import registry  # noqa: F401 - see above

    go, ranks = Event(), SimpleQueue[int]()
    for _ in range(count):
        Thread(target=_meet, args=(go, nodes, port, ranks), daemon=True).start()
    with suppress(EOFError):
        pipe.send(None)
        pipe.recv()
        go.set()
        for _ in range(count):
            ranks.get()
        pipe.send(time.monotonic())
        # The others may still need these nodes.
        pipe.recv()
    os._exit(0)


def _meet(go: Event, nodes: int, port: int, ranks: "SimpleQueue[int]") -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{STORE}:{port}",
        run_id="7f3a9c21",
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=STORE,
        is_host=False,
    )
    go.wait()
    handler = registry.get_rendezvous_handler(parameters)
    ranks.put(handler.next_rendezvous().rank)
    # The heartbeats end with the handler.
    Event().wait()
