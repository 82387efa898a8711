"""Which variables of this process a host gets: all but those that describe this host or session."""

from collections.abc import Collection, Mapping

from clusterrun.job.clusters.detection import CLUSTERS
from clusterrun.job.declaring import rows_of
from clusterrun.job.options import OPTIONS, Reaching
from clusterrun.job.sources import PREFIX, TORCHRUN_PREFIX

_OWN = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "HOST", "HOSTNAME", "HOSTTYPE"),
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "TERMINFO", "COLUMNS", "LINES", "WINDOWID", "TTY"),
        *("DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "STY", "TMUX"),
        *("TMUX_PANE", "TMPDIR", "TMP", "TEMP", "KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)

_OWN_PREFIXES = (
    *("SSH_", "XDG_", "GPG_", "VSCODE_"),
    # A scheduler's: its job is this process's, not that of an agent which ssh has started.
    *(beginning for cluster in CLUSTERS for beginning in cluster.private),
)

_NAMES = {
    name.upper()
    for option in (*rows_of(Reaching), "hosts", "hostfile", "node_rank", "token_file")
    for name in OPTIONS[option].names
}

_OPTIONS = {f"{prefix}{name}" for prefix in (PREFIX, TORCHRUN_PREFIX) for name in _NAMES}
"""Variables of options that the client has read for all hosts."""


def forwarded(environ: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    """Return the variables of ``environ`` for the hosts, without those in ``unset``."""
    not_for_hosts = {*_OWN, *_OPTIONS, *unset}
    return {
        name: value
        for name, value in environ.items()
        if name not in not_for_hosts and not name.startswith(_OWN_PREFIXES)
    }
