"""Scripts that the workers of several tests run, indented like those inside of tests."""

WAITS = """
    import os, time
    print("ready", os.getpid(), flush=True)
    while True: time.sleep(0.1)
"""
"""Not one long sleep: Python loses a signal that arrives just before a system call until its end."""

RANKS_RENDEZVOUS = """
    import os, socket, time

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    if rank == 0:
        with socket.create_server(("", where[1]), family=family) as server:
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
"""The ranks connect at MASTER_ADDR and MASTER_PORT, as torch's do. ``calls`` has the connections:
rank 0 has one to each other rank, each of these has one to rank 0."""
