"""Scripts that workers of several tests run, indented like those inside tests."""

WAITS = """
    import os, time
    print("ready", os.getpid(), flush=True)
    while True: time.sleep(0.1)
"""
"""Python handles a signal that arrives just before a long sleep only after it."""

RANKS_RENDEZVOUS = """
    import os, socket, time

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    if rank == 0:
        with socket.create_server(("", address[1]), family=family) as server:
            calls = [server.accept()[0] for _ in range(size - 1)]
    else:
        while True:
            try:
                calls = [socket.create_connection(address, timeout=20)]
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        calls[0].settimeout(None)
"""
"""The ranks connect to MASTER_ADDR and MASTER_PORT, as torch's do. ``calls`` are the connections:
rank 0 has one to each other rank, and each of them has one to rank 0."""
