"""Count the checkpoints that a job saves after SIGTERM: clusterrun beside torchrun.

Each rank reads its batches with a torch DataLoader of two processes. It notes SIGTERM, finishes its
step, and saves. Run it from the repository's root: ``PYTHONPATH=. python
scripts/compare_checkpoints.py``. Prints for each launcher how many of the runs have the checkpoints
of all ranks, and what the first run without them says.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from side_by_side import OURS, THEIRS, exit_on_sigterm

from tests.contract.launched import Launcher

RANKS = 2

TRAIN = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset

class Batches(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, number):
        time.sleep(0.01)
        return torch.full((8,), float(number))

def note(number, frame):
    global wanted
    wanted = True

wanted = False
signal.signal(signal.SIGTERM, note)
weight = torch.zeros(8)
for step, batch in enumerate(DataLoader(Batches(), num_workers=2)):
    weight += batch[0]
    if step == 5:
        print("step 5", flush=True)
    if wanted:
        torch.save(weight, f"checkpoint-{os.environ['RANK']}.pt")
        break
"""
"""Plain training code: nothing of it knows which launcher runs it."""


def main() -> None:
    """Run both launchers in turn."""
    exit_on_sigterm()
    arguments = argparse.ArgumentParser(description="Count checkpoints that are saved on SIGTERM.")
    arguments.add_argument("--runs", type=int, default=3)
    runs = arguments.parse_args().runs
    whole = {OURS: 0, THEIRS: 0}
    said = dict.fromkeys(whole, "")
    for _ in range(runs):
        for program in whole:
            saved, errors = run(program)
            whole[program] += saved == RANKS
            if saved < RANKS:
                said[program] = said[program] or errors
    for program, count in whole.items():
        print(f"{program}: {count} of {runs} runs saved the checkpoints of all {RANKS} ranks")
        if said[program]:
            print(f"  {last_error(said[program])}")


def run(program: str) -> tuple[int, str]:
    """Return how many ranks have saved after SIGTERM to the launcher, and its standard error."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), str(Path(sys.executable).with_name(program)))
        (launcher.folder / "train.py").write_text(TRAIN)
        job = launcher.command(f"--nproc-per-node={RANKS}", "train.py", workers=RANKS)
        try:
            job.wait_for("step 5", times=RANKS, seconds=60)
            job.signal(signal.SIGTERM)
            ended = job.ended(60)
        finally:
            launcher.close()
        return len(list(launcher.folder.glob("checkpoint-*.pt"))), ended.err


def last_error(errors: str) -> str:
    """Return the last line of a traceback."""
    lines = [line.strip() for line in errors.splitlines() if "Error: " in line]
    return lines[-1] if lines else "no traceback"


if __name__ == "__main__":
    main()
