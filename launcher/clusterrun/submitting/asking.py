"""Runs a scheduler's command, once and for a limited time."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.bounds import as_text

SECONDS_TO_ANSWER = 60.0
"""A controller that starts or is overloaded takes this long to queue a job."""


class Answer(Struct, frozen=True):
    """What a command has printed, and how it has ended."""

    out: str
    err: str
    code: int
    """Its exit code, -N for signal N; 127 if it could not be started, 124 if it was too slow."""

    @property
    def trouble(self) -> str:
        """Why it has failed, in its own words, which may have names of others."""
        return as_text(self.err.strip() or self.out.strip()) or f"exit code {self.code}"


def ask(words: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> Answer:
    """Run ``words`` with ``stdin`` as its standard input; it never raises."""
    # Few commands ask.
    import subprocess

    try:
        done = subprocess.run(
            words,
            env=dict(environ),
            input=stdin.encode(),
            capture_output=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except OSError as error:
        return Answer("", f"{words[0]}: {error.strerror}", 127)
    except subprocess.TimeoutExpired:
        return Answer("", f"{words[0]}: no answer in {SECONDS_TO_ANSWER:g} s", 124)
    out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    return Answer(out, err, done.returncode)
