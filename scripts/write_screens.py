"""Draw what the commands that look into a job print, as pictures for the documentation.

    scripts/write_screens.py [FOLDER]

It runs a job of four ranks, one of which it stops, types ``clusterrun ps``, ``status`` and ``doctor``,
and writes an SVG of each to FOLDER, docs/images by default.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from door import (
    Answers,
    NodeRanks,
    Query,
    Topic,
    ask,
    find_jobs,
    read,
)
from rich.console import Console
from rich.text import Text

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))

IMAGES = Path(__file__).parents[1] / "docs/images"

TRAINS = """
import os, time
rank, step = int(os.environ["RANK"]), 0
while True:
    step += 1
    print(f"step {step} loss {2.3 / (1 + step / 50):.4f}", flush=True)
    until = time.monotonic() + 0.1
    while time.monotonic() < until and rank < 2:
        pass
    time.sleep(max(0.0, until - time.monotonic()))
"""
"""Ranks 0 and 1 compute between two steps, and the others sleep."""

STOPPED = 2

SECONDS_QUIET = 8.0
"""Then the stopped rank is behind."""


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    with tempfile.TemporaryDirectory() as home:
        script = Path(home) / "train.py"
        script.write_text(TRAINS)
        environ = {**os.environ, "XDG_RUNTIME_DIR": home}
        words = ("--nproc-per-node", "4", "--run-id", "digits", "train.py")
        with subprocess.Popen(
            [CLUSTERRUN, *words],
            cwd=home,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as job:
            try:
                _draw_all(folder, Path(home), environ)
            finally:
                stop = [CLUSTERRUN, "stop", "--now", "digits"]
                subprocess.run(stop, env=environ, stdout=subprocess.DEVNULL, check=False)
                job.wait(60)


def _draw_all(folder: Path, home: Path, environ: Mapping[str, str]) -> None:
    os.kill(_pids(home / "clusterrun")[STOPPED], signal.SIGSTOP)
    time.sleep(SECONDS_QUIET)
    for words in (["ps"], ["status"], ["doctor"]):
        done = subprocess.run(
            [CLUSTERRUN, *words], env=environ, capture_output=True, text=True, check=False
        )
        _draw(folder, " ".join(words), Text(done.stdout.rstrip()))


def _pids(sockets: Path) -> dict[int, int]:
    """Return the process ids of the job's ranks, once all of them print."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for job in find_jobs([sockets]).jobs if sockets.exists() else ():
            found, _ = read(ask(job, Query(1, Topic.RANKS, 1.2), Answers), NodeRanks)
            ranks = [rank for _, node in found for rank in node.ranks]
            if ranks and all(rank.last_line for rank in ranks):
                return {rank.rank: rank.pid for rank in ranks}
        time.sleep(0.1)
    sys.exit("the job does not print")


def _draw(folder: Path, command: str, text: Text) -> None:
    """Write the picture of a terminal in which ``command`` has printed ``text``."""
    width = max(len(line) for line in text.plain.splitlines())
    # It is not shown here, only recorded.
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere, record=True, width=width, force_terminal=True)
        console.print(text, no_wrap=True, overflow="crop", crop=False)
        svg = console.export_svg(title=f"clusterrun {command}", unique_id=command)
    # A page needs no font of another server.
    svg = re.sub(r"@font-face \{[^}]*\}\s*", "", svg)
    (folder / f"{command}.svg").write_text(
        "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    )


main()
