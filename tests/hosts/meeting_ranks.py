"""How the ranks of tested programs connect to each other without torch."""

RANKS_MEET = """
    import atexit, os, signal, socket, sys, time

    faults = dict(word.split("=") for word in sys.argv[1:])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def exactly_one(call):
        data = call.recv(1)
        if not data:
            raise ConnectionError("connection closed by peer")
        return data

    if rank == 0:
        server = socket.create_server(("", where[1]))
        calls = [server.accept()[0] for _ in range(size - 1)]
    else:
        while True:
            try:
                calls = [socket.create_connection(where, timeout=20)]
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        calls[0].settimeout(None)
"""
"""Rank 0 has a connection from each other rank in ``calls``; each of these has one to rank 0."""
