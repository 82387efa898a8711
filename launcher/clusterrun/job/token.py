"""The token of a job: set by the user, or made of the scheduler's secret."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_IRGRP, S_IROTH, S_ISREG, S_IWGRP, S_IWOTH

from clusterrun.errors import UsageError, shell_line
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.sources import TOKEN_VARIABLE, Layer, value_of
from clusterrun.job.suggestions import did_you_mean_file

OPEN_TO_ALL = S_IROTH | S_IWOTH
"""Mode bits with which every user of the machine can read or change the token."""

OPEN_TO_GROUP = S_IRGRP | S_IWGRP

MIN_CHARACTERS = 16
"""A shorter secret could be found by brute force from one recorded handshake."""

MAKE_ONE = "(umask 077; openssl rand -hex 32 > {file})"


def find_token(
    flags: Layer,
    sources: Sequence[Layer],
    environ: Mapping[str, str],
    default: Setting[str] | None,
) -> Setting[str | None]:
    """Return the token from the file of ``--token-file``, from CLUSTERRUN_TOKEN, or from another file.

    No flag takes the token itself, because all users of a machine can read command lines.

    Raises:
        UsageError: the token is too short, or every user of the machine can read its file.

    """
    if TOKEN_VARIABLE in environ and not value_of("token_file", [flags]).value:
        return Setting(_checked(environ[TOKEN_VARIABLE]), TOKEN_VARIABLE)
    file = value_of("token_file", sources)
    if file.value:
        return Setting(_read(file), file.origin)
    return default or Setting(None, "default")


def token_warnings(job: Job) -> Iterator[str]:
    """Yield a warning if a group can read the file, unless it is a mounted secret of Kubernetes."""
    file = job.setting("token_file")
    if not file.value or job.origin("token") == TOKEN_VARIABLE:
        return
    with suppress(OSError):
        mode = Path(file.value).stat().st_mode
        is_mounted = os.statvfs(file.value).f_flag & os.ST_RDONLY
        if S_ISREG(mode) and mode & OPEN_TO_GROUP and not is_mounted:
            yield (
                f"{file.origin}: {file.value} holds a secret, and is open to its group (mode"
                f" {S_IMODE(mode):o}); to close it:"
                f" {shell_line(['chmod', 'g-rwx', file.value])}"
            )


def _checked(token: str) -> str:
    hint = f"set it to the same secret on all nodes, or unset it:\n  unset {TOKEN_VARIABLE}"
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{TOKEN_VARIABLE} is not UTF-8 text", hint) from None
    if not token.strip():
        raise UsageError(f"{TOKEN_VARIABLE} is empty", hint)
    if len(token.strip()) < MIN_CHARACTERS:
        raise UsageError(
            f"{TOKEN_VARIABLE} has fewer than {MIN_CHARACTERS} characters: it could be guessed",
            f"make a secret, and set it on all nodes:\n  {MAKE_ONE.format(file='token')}\n"
            f"  export {TOKEN_VARIABLE}=$(cat token)",
        )
    return token.strip()


def _read(file: Setting[str]) -> str:
    try:
        with Path(file.value).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read().strip()
    except UnicodeDecodeError:
        raise _no_secret(file, "not UTF-8 text") from None
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} can't be read: {error.strerror}",
            did_you_mean_file(file.value),
        ) from None
    if S_ISREG(mode) and mode & OPEN_TO_ALL:
        raise UsageError(
            f"{file.origin}: {file.value} holds a secret, but is open to all users (mode"
            f" {S_IMODE(mode):o})",
            f"close it to others:\n  {shell_line(['chmod', 'o-rwx', file.value])}\n"
            "or, if it is a mounted Kubernetes secret, set its volume's defaultMode: 0400",
        )
    if not token:
        raise _no_secret(file, "empty")
    if len(token) < MIN_CHARACTERS:
        raise _no_secret(file, f"shorter than {MIN_CHARACTERS} characters, and could be guessed")
    return token


def _no_secret(file: Setting[str], what: str) -> UsageError:
    return UsageError(
        f"{file.origin}: {file.value} is {what}",
        f"create a secret:\n  {MAKE_ONE.format(file=shell_line([file.value]))}",
    )
