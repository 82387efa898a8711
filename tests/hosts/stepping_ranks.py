"""Ranks that communicate without torch."""

from tests.contract.worker_scripts import RANKS_RENDEZVOUS

RANKS_STEP = f"""{RANKS_RENDEZVOUS}
    import atexit, signal, sys

    faults = dict(word.split("=") for word in sys.argv[1:])

    def receive_one(call):
        data = call.recv(1)
        if not data:
            raise ConnectionError("connection closed by peer")
        return data

    def all_reduce():
        if rank == 0:
            for call in calls:
                receive_one(call)
        for call in calls:
            call.sendall(b"x")
        if rank > 0:
            receive_one(calls[0])
"""
"""``all_reduce`` returns on no rank before all ranks have called it; ``faults`` has one by rank."""

SUM_OF_RANKS = f"""{RANKS_RENDEZVOUS}
    if rank == 0:
        print("sum", sum(int(call.recv(1)) for call in calls))
    else:
        calls[0].sendall(str(rank).encode())
"""
"""Rank 0 prints the sum of all ranks, which it receives from the others."""
