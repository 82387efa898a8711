"""Which values of variables are not printed, because users share plans, reports and messages."""

import re

REDACTED = "(redacted)"

_SAYS_SECRET = re.compile(
    r"TOKEN(?!IZER|_FILE)|SECRET|PASS(?!_LOCAL_RANK)|KEY|CREDENTIAL|AUTH|BEARER|COOKIE|JWT|SIGNATURE"
    r"|HOOK|_PWD|(^|_)(PW|DSN|SIG)(_|$)|(CLUSTERRUN|PET)_(ENV|SSH_OPTIONS)",
    re.IGNORECASE,
)
"""Parts of variable names. The last ones are options that may contain any command or variable."""

_USER = re.compile(r"(?<=://)[^/@\s]+@")
"""The user and password in a URL."""

_PARAMETER = re.compile(r"(?<=[?&;])([^=?&;\s]+)=[^&;\s]+")
"""A parameter of a URL, which may be the signature that grants access."""


def may_hold_secret(name: str) -> bool:
    """Return whether a variable of this name may hold a secret."""
    return _SAYS_SECRET.search(name) is not None


def redacted(name: str, value: str) -> str:
    """Return the value of a variable as it may be printed."""
    if may_hold_secret(name):
        return REDACTED
    return _PARAMETER.sub(_shown_parameter, _USER.sub(f"{REDACTED}@", value))


def _shown_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if may_hold_secret(found[1].replace("-", "_")) else found[0]
