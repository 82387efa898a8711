"""The token of a job: set by the user, or made of a secret that the scheduler's job has."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_IROTH, S_ISREG, S_IWOTH

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.rows.joining import TOKEN_FILE
from clusterrun.sources.options.suggestions import did_you_mean_file
from clusterrun.sources.settings import TOKEN_VARIABLE, Settings, value_of

OPEN_TO_ALL = S_IROTH | S_IWOTH
"""Bits of a file's mode by which every user of the machine can read the token, or change it."""


def find_token(
    sources: Sequence[Settings], environ: Mapping[str, str], default: Fact[str] | None
) -> Fact[str | None]:
    """Return the token from ``--token-file``, else CLUSTERRUN_TOKEN, else another source's file.

    There is no flag for the token itself: every user of a machine can read command lines.
    """
    by_flag = value_of(TOKEN_FILE, sources[:1])
    if not by_flag.value and TOKEN_VARIABLE in environ:
        return Fact(_checked(environ[TOKEN_VARIABLE]), TOKEN_VARIABLE)
    file = value_of(TOKEN_FILE, sources)
    if file.value:
        return Fact(_read(file), file.origin)
    return default or Fact(None, "default")


def _checked(token: str) -> str:
    hint = f"set it to the same secret on all nodes, or unset it:\n  unset {TOKEN_VARIABLE}"
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{TOKEN_VARIABLE} is not UTF-8 text", hint) from None
    if not token.strip():
        raise UsageError(f"{TOKEN_VARIABLE} is empty", hint)
    return token.strip()


def _read(file: Fact[str]) -> str:
    try:
        with Path(file.value).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read().strip()
    except UnicodeDecodeError:
        raise _no_secret(file, "not UTF-8 text") from None
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} cannot be read: {error.strerror}",
            did_you_mean_file(file.value),
        ) from None
    if S_ISREG(mode) and mode & OPEN_TO_ALL:
        raise UsageError(
            f"{file.origin}: {file.value} holds a secret, but is open to all users (mode"
            f" {mode & 0o777:o})",
            f"close it to others:\n  chmod o-rwx {file.value}\n"
            "or, if it is a mounted Kubernetes secret, set its volume's defaultMode: 0400",
        )
    if not token:
        raise _no_secret(file, "empty")
    return token


def _no_secret(file: Fact[str], what: str) -> UsageError:
    return UsageError(
        f"{file.origin}: {file.value} is {what}",
        f"create a secret:\n  (umask 077; openssl rand -hex 32 > {file.value})",
    )
