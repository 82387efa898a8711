"""The fork server: imports what the script imports first, then starts, signals and reaps the workers.

The agent executes ``PYTHON -u fork_server/__main__.py PID [--guarded] -- SCRIPT ARGUMENTS`` in the job's
environment, with its own process id and one end of a socketpair as descriptor 3. ``--guarded`` asks for a
parent that ends what the server leaves: it imports what a user names. What follows ``--`` is for ``ps``.

The package is self-contained: standard library only, Python 3.8 or newer, relative imports only. So
workers have the job's interpreter and none of our modules.

    server.py            the loop: the agent's requests, the workers, what they leave
    guard.py             the process above a server that imports what a user names
    messages.py          what agent, server and relay send each other: types
    channel.py           their frames, with descriptors
    worker_start.py      the steps of a forked child on its way to its program
    failure_notes.py     how the server learns that a script has failed
    script.py            what a forked worker runs
    reexec.py        how such a worker executes its program after all
    binding.py           the CPUs and the memory of a worker
    lease.py             until when workers may run,
    kernel.py            what Python does not offer of Linux; the agent's, too
    preloading/          what is imported before workers are forked, and whether that is safe

A worker is forked from the server, and then executes its program (spawn) or runs the script (fork).
For the latter it returns out of all functions here to ``__main__``, which executes the script. Before
anything of the job is imported, the server removes its own modules from ``sys.modules``. It uses the
C modules beneath some public ones, as these take longer to import.

When the socket closes, because the agent ended or was killed, the server kills all workers and everything
that they left behind, closes the connection that it holds, and exits.
"""
