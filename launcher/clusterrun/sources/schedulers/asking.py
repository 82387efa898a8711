"""Runs a scheduler's command, once and for a limited time."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

SECONDS_TO_ANSWER = 15.0
"""A busy controller takes seconds; the launch waits meanwhile."""


class Answer(Struct, frozen=True):
    """What a command has printed."""

    text: str
    error: str
    """Why it has failed, in one line; "" if it has not."""


def ask(command: Sequence[str], environ: Mapping[str, str]) -> Answer:
    """Run ``command`` and return what it prints, or why there is no answer; it never raises."""
    # Few jobs ask.
    import subprocess

    try:
        done = subprocess.run(
            command,
            # As seconds since the epoch: scontrol has no time zone in its times.
            env={**environ, "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except OSError as error:
        return Answer("", f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer("", f"no answer in {SECONDS_TO_ANSWER:g} s")
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return Answer(text, "")
    lines = (done.stderr.decode(errors="replace") or text).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
    return Answer("", f"{last} ({how})" if last else how)
