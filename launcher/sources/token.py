"""The secret that all nodes of a job hold: from CLUSTERRUN_TOKEN or a file, and never shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.domain.facts import Fact
from launcher.errors import UsageError
from launcher.sources.options import TOKEN_FILE
from launcher.sources.said import TOKEN_VARIABLE, Said, settle
from launcher.sources.suggestions import did_you_mean_file


def find_token(sources: Sequence[Said], environ: Mapping[str, str]) -> Fact[str | None]:
    """Return the secret, by the flag for its file, else CLUSTERRUN_TOKEN, else another's file.

    There is no flag for the secret itself: every user of a machine can read command lines.

    Raises:
        UsageError: the file can't be read, or has nothing in it.

    """
    by_flag = settle(TOKEN_FILE, sources[:1])
    if not by_flag.value and environ.get(TOKEN_VARIABLE):
        return Fact(environ[TOKEN_VARIABLE], TOKEN_VARIABLE)
    file = settle(TOKEN_FILE, sources)
    return Fact(_read(file), file.origin) if file.value else Fact(None, "default")


def _read(file: Fact[str]) -> str:
    try:
        token = Path(file.value).read_text().strip()
    except UnicodeDecodeError:
        raise _no_secret(file, "not a text") from None
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} cannot be read: {error.strerror}",
            did_you_mean_file(file.value),
        ) from None
    if not token:
        raise _no_secret(file, "empty")
    return token


def _no_secret(file: Fact[str], what: str) -> UsageError:
    return UsageError(
        f"{file.origin}: {file.value} is {what}",
        f"make one:\n  openssl rand -hex 32 > {file.value}",
    )
