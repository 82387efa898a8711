"""The relay: the process that owns the workers' pipes, the terminal and the log files.

    client.py             the agent's half: forks the relay and talks with it
    loop.py               the process: waits for pipes, outputs and the agent
    streams.py            one pipe of a worker, and the places that take its lines
    lines.py              lines of bytes, progress bars, stacks, chosen texts
    screen.py             standard output and error: whole lines of many workers, and one live line
    files.py              files, which threads write
    equal_tracebacks.py   those of several workers are shown once
    kept.py               what the report and commands get of a worker's lines
    stacks.py             the stacks that workers print on SIGQUIT
    routes.py             where each stream goes, decided from the job alone

Messages are those of ``fork_server.messages``, and travel by ``fork_server.channel``.
"""
