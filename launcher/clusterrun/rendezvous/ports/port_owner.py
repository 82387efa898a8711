"""Which program has a port, for the errors about a busy one."""

from contextlib import suppress


def owner_of_port(port: int) -> str:
    """Return the program that listens on ``port``: "python (pid 12)", or as much as is known."""
    import psutil

    # RuntimeError: psutil could not read a line of the kernel's table.
    with suppress(OSError, RuntimeError, psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a program of another user or container"
                return program(connection.pid)
    return "another program"


def program(pid: int) -> str:
    """Return "python (pid 12)"."""
    import psutil

    name = ""
    with suppress(psutil.Error):
        name = psutil.Process(pid).name()
    return f"{name or 'a program'} (pid {pid})"
