"""Draw the output of the commands about running jobs, as pictures for the documentation.

    scripts/write_screens.py [FOLDER]

It runs a job of four ranks, one of which it stops, types ``clusterrun ps``, ``status`` and ``doctor``,
then one of which a rank is slow, types ``clusterrun slow``, and writes an SVG of each to FOLDER,
docs/images by default. It needs torch and py-spy.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from clusterrun.network.control_client import ask, find_jobs
from clusterrun.policy.answers import NodeRanks, decode_answers
from clusterrun.policy.queries import Answers, Query, Topic
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

READS_SLOWLY = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, _):
        time.sleep(0.01 if os.environ["RANK"] == "2" else 0.0)
        return torch.randn(256)

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in enumerate(DataLoader(Samples(), batch_size=8)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    print("step", step, flush=True)
"""
"""The others wait for rank 2."""

STOPPED = 2

SECONDS_QUIET = 8.0
"""Then the stopped rank is behind."""


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    for script, draw in ((TRAINS, _draw_stopped), (READS_SLOWLY, _draw_slow)):
        with tempfile.TemporaryDirectory() as home:
            _with_job(folder, Path(home), script, draw)


def _with_job(
    folder: Path,
    home: Path,
    script: str,
    draw: Callable[[Path, Path, Mapping[str, str]], None],
) -> None:
    """Run a job of four ranks while its pictures are drawn."""
    (home / "train.py").write_text(script)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(home)}
    words = ("--nproc-per-node", "4", "--run-id", "digits", "train.py")
    with subprocess.Popen(
        [CLUSTERRUN, *words],
        cwd=home,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            draw(folder, home, environ)
        finally:
            stop = [CLUSTERRUN, "stop", "--now", "digits"]
            subprocess.run(stop, env=environ, stdout=subprocess.DEVNULL, check=False)
            job.wait(60)


def _draw_stopped(folder: Path, home: Path, environ: Mapping[str, str]) -> None:
    os.kill(_pids(home / "clusterrun")[STOPPED], signal.SIGSTOP)
    time.sleep(SECONDS_QUIET)
    for command in ("ps", "status", "doctor"):
        _draw(folder, command, environ)


def _draw_slow(folder: Path, home: Path, environ: Mapping[str, str]) -> None:
    _pids(home / "clusterrun")
    _draw(folder, "slow", environ)


def _pids(sockets: Path) -> dict[int, int]:
    """Return the process ids of the job's ranks, once all of them print."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for job in find_jobs([sockets]).jobs if sockets.exists() else ():
            found, _ = decode_answers(ask(job, Query(1, Topic.RANKS, 1.2), Answers), NodeRanks)
            ranks = [rank for _, node in found for rank in node.ranks]
            if ranks and all(rank.last_line for rank in ranks):
                return {rank.rank: rank.pid for rank in ranks}
        time.sleep(0.1)
    sys.exit("the job does not print")


def _draw(folder: Path, command: str, environ: Mapping[str, str]) -> None:
    """Write the picture of a terminal in which a command was typed."""
    done = subprocess.run(
        [CLUSTERRUN, command], env=environ, capture_output=True, text=True, check=False
    )
    text = Text(done.stdout.rstrip())
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
