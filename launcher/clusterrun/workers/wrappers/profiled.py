"""Runs a program, and records what torch does in some of its steps: ``--profile``.

    PYTHON -u profiled.py FILE SCRIPT ARGS

A step ends with a call of an optimizer's ``step``. Those that follow the first ones, in which
libraries choose their algorithms, are written to FILE as soon as they are complete.
"""

from __future__ import annotations

import os
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile, schedule
from wrapped_program import run

SKIPPED = 5
WARM_UP = 3
"""The profiler runs, and what it records is thrown away: its own start disturbs them."""
RECORDED = 10


class Profile:
    """Counts the steps of this process, and records the chosen ones."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._steps = 0
        self._is_over = False
        self._profiler = profile(
            schedule=schedule(wait=SKIPPED, warmup=WARM_UP, active=RECORDED, repeat=1),
            on_trace_ready=self._write,
        )

    def begin(self) -> None:
        """Count from now on."""
        self._profiler.start()
        register_optimizer_step_post_hook(self._step)

    def end(self) -> None:
        """Write what there is, if the program ends before all chosen steps are recorded."""
        self._profiler.stop()
        if not self._is_over:
            first, last = SKIPPED + WARM_UP + 1, SKIPPED + WARM_UP + RECORDED
            say(
                f"no profile, as an optimizer has made {self._steps} steps; steps {first} to {last}"
                " are recorded"
            )

    def _step(self, *_: object) -> None:
        self._steps += 1
        self._profiler.step()

    def _write(self, recorded: profile) -> None:
        self._is_over = True
        folder, name = os.path.split(self._path)
        # The ending says to compress it.
        unfinished = os.path.join(folder, f"unfinished-{name}")
        try:
            os.makedirs(folder, exist_ok=True)
            recorded.export_chrome_trace(unfinished)
            os.replace(unfinished, self._path)
        except OSError as error:
            # Training goes on.
            say(f"the profile can't be written to {self._path}: {error.strerror}")
            return
        say(f"the profile of rank {os.environ['RANK']} is in {self._path}")


def say(text: str) -> None:
    """Print a line of the launcher's."""
    print(f"clusterrun: {text}", file=sys.stderr)


def main() -> None:
    """Run the program; exit with 1 if it fails."""
    path, *words = sys.argv[1:]
    recording = Profile(path)
    recording.begin()
    try:
        run(words)
    finally:
        recording.end()


main()
