"""The secret that all nodes of a job hold: given, or made of what a scheduler's job shares."""

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
"""A file's mode that lets every user of the machine read the secret, or choose it."""


def find_token(
    sources: Sequence[Settings], environ: Mapping[str, str], otherwise: Fact[str] | None
) -> Fact[str | None]:
    """Return the secret, by the flag for its file, else CLUSTERRUN_TOKEN, else another's file.

    There is no flag for the secret itself: every user of a machine can read command lines.

    Args:
        sources: what flags, variables and the job file say.
        environ: the environment of this process.
        otherwise: the secret where nothing of that is said; None: there is none.

    Raises:
        UsageError: the file can't be read, or is open to all users; or there is nothing in it, or
            in the variable.

    """
    by_flag = value_of(TOKEN_FILE, sources[:1])
    if not by_flag.value and TOKEN_VARIABLE in environ:
        return Fact(_checked(environ[TOKEN_VARIABLE]), TOKEN_VARIABLE)
    file = value_of(TOKEN_FILE, sources)
    if file.value:
        return Fact(_read(file), file.origin)
    return Fact(None, "default") if otherwise is None else Fact(otherwise.value, otherwise.origin)


def token_of_job(secret: Fact[str], user_id: int) -> Fact[str]:
    """Return the token of a scheduler's job, of which all nodes know ``secret``."""
    return Fact(f"{secret.value} of user {user_id}", secret.origin)


def _checked(token: str) -> str:
    hint = f"give a secret, the same on all nodes, or none:\n  unset {TOKEN_VARIABLE}"
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{TOKEN_VARIABLE} is not a text in UTF-8", hint) from None
    if not token.strip():
        raise UsageError(f"{TOKEN_VARIABLE} is set, and empty", hint)
    return token.strip()


def _read(file: Fact[str]) -> str:
    try:
        with Path(file.value).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read().strip()
    except UnicodeDecodeError:
        raise _no_secret(file, "not a text in UTF-8") from None
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} cannot be read: {error.strerror}",
            did_you_mean_file(file.value),
        ) from None
    if S_ISREG(mode) and mode & OPEN_TO_ALL:
        raise UsageError(
            f"{file.origin}: {file.value} is open to all users (mode {mode & 0o777:o}),"
            " and holds a secret",
            f"keep it from others:\n  chmod o-rwx {file.value}\n"
            "or, where a Kubernetes secret is mounted there, give its volume defaultMode: 0400",
        )
    if not token:
        raise _no_secret(file, "empty")
    return token


def _no_secret(file: Fact[str], what: str) -> UsageError:
    return UsageError(
        f"{file.origin}: {file.value} is {what}",
        f"make one:\n  (umask 077; openssl rand -hex 32 > {file.value})",
    )
