"""The relay: the process that owns the workers' pipes, the terminal and the log files.

    client.py                 the agent's side: forks the relay and exchanges messages with it
    loop.py                   the process: waits for pipes, outputs and the agent
    streams.py                one pipe of a worker, and the outputs of its lines
    lines.py                  turns bytes into lines; finds progress bars, stacks and chosen texts
    screen.py                 standard output and error: whole lines of many workers, and one live line
    files.py                  log files, written by threads
    duplicate_tracebacks.py   prints a traceback of several workers once
    recent_output.py          the last lines of a worker, for the report and for commands
    stacks.py                 the stacks that workers print on SIGQUIT
    routes.py                 where each stream goes, decided from the job alone

Messages are those of ``fork_server.messages``, sent through ``fork_server.channel``.
"""
