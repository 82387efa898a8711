"""The fork server: preloads modules, then starts, signals and reaps the workers of a node.

The agent executes ``PYTHON -u fork_server/__main__.py PID [--guarded] -- SCRIPT ARGUMENTS`` in the job's
environment. PID is the agent's, and descriptor 3 is one end of a socketpair to it. With ``--guarded``, for
a server that imports modules named by the user, a parent process kills whatever the server leaves. The
words after ``--`` are only for ``ps``.

The package is self-contained: standard library, Python 3.8 or newer, relative imports. So workers have the
job's interpreter and none of the launcher's modules.

    server.py            the event loop: requests of the agent, workers, leftover processes
    guard.py             the parent of a server that imports modules named by the user
    messages.py          message types between agent, fork server and relay
    channel.py           their encoding, with file descriptors
    worker_start.py      the steps between the fork and the worker's program
    failure_notes.py     how the server learns that a script has failed
    script.py            reads the script and sets up a forked worker for it
    script_run.py        runs it
    reexec.py            how a forked worker executes its program after all
    binding.py           CPU affinity and memory policy of a worker
    lease.py             how long workers may run without the agent
    kernel.py            Linux calls and /proc; the agent uses it too
    preloading/          what is imported before workers are forked, and whether that is safe

A worker is forked from the server. It then executes its program (spawn), or returns from all functions of
this package to ``__main__``, which runs the script (fork). Before it imports anything of the job, the
server removes its own modules from ``sys.modules``. It uses some private C modules such as ``_socket``
because the public ones take longer to import.

When the socket closes, because the agent ended or was killed, the server kills all workers and everything
they left behind, closes its copy of the connection to node 0, and exits.
"""
