"""The command line of ssh(1)."""

from collections.abc import Sequence

from clusterrun.ssh.remote_command import COMMAND

_ALWAYS = (
    # The first value that ssh gets counts: no file of the user's changes these.
    *("-T", "-o", "BatchMode=yes"),  # no terminal, no question
    *("-o", "RemoteCommand=none"),
    # As scp does: a port that ssh_config forwards is taken by the first of several connections.
    *("-o", "ClearAllForwardings=yes"),
)


def ssh_command(ssh: str, host: str, options: Sequence[str]) -> list[str]:
    """Return the words that run our command on ``host``.

    Args:
        ssh: the path of the program.
        host: a name or an address, as ssh_config may know it.
        options: the user's; they do not replace ours. Host keys are checked as ssh_config says.

    """
    return [ssh, *_ALWAYS, *options, "--", host, COMMAND]
