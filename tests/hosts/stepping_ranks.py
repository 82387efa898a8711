"""How the ranks of tested programs make steps together without torch."""

from tests.contract.worker_scripts import RANKS_RENDEZVOUS

RANKS_STEP = f"""{RANKS_RENDEZVOUS}
    import atexit, signal, sys

    faults = dict(word.split("=") for word in sys.argv[1:])

    def exactly_one(call):
        data = call.recv(1)
        if not data:
            raise ConnectionError("connection closed by peer")
        return data

    def all_reduce():
        if rank == 0:
            for call in calls:
                exactly_one(call)
        for call in calls:
            call.sendall(b"x")
        if rank > 0:
            exactly_one(calls[0])
"""
"""``all_reduce`` returns on no rank before all ranks have called it; ``faults`` has one by rank."""
