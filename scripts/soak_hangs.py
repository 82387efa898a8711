"""Run healthy jobs of many kinds at once, and see that none is taken for hung.

    scripts/soak_hangs.py --minutes 60 --hang-timeout 30

Each prints, or runs its main threads, in such a way that a careless rule would call it a hang. Those that
need torch or lightning are left out where this Python lacks it. Exit code 1: a hang was reported, or a
job has ended.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import exit_on_sigterm

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))

SIGNS = ("no rank has printed or exited", "no main thread has run", "are behind in NCCL")

PRINTS = """
import os, threading, time
def prints():
    step = 0
    while True:
        step += 1
        print("metrics", step, flush=True)
        time.sleep(2)
threading.Thread(target=prints, daemon=True).start()
"""

TORCH = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""

DDP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
"""

KINDS = {
    "DDP that prints": TORCH
    + DDP
    + """
import time
while True:
    step(model, optimizer)
    print("step", flush=True)
    time.sleep(0.5)
""",
    "FSDP": TORCH
    + """
import time
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(64, 64)
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    step(model, optimizer)
    print("step", flush=True)
    time.sleep(0.5)
""",
    "training in a thread": PRINTS
    + TORCH
    + DDP
    + """
def train():
    while True:
        step(model, optimizer)
        time.sleep(0.2)
thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    "a main thread that only waits": PRINTS + "while True:\n    threading.Event().wait(100)\n",
    "evaluation with long pauses": """
import os, time
while True:
    print("accuracy", flush=True)
    until = time.monotonic() + 0.8 * float(os.environ["HANG_TIMEOUT"])
    while time.monotonic() < until:
        sum(range(10000))
        time.sleep(0.05)
""",
    "rank 0 saves for long": PRINTS
    + TORCH
    + """
while True:
    if rank == 0:
        until = time.monotonic() + 2 * float(os.environ["HANG_TIMEOUT"])
        while time.monotonic() < until:
            torch.randn(64, 64) @ torch.randn(64, 64)
            time.sleep(0.05)
    dist.barrier()
""",
    "an event loop": PRINTS
    + """
import asyncio
async def serves():
    while True:
        await asyncio.sleep(5)
asyncio.run(serves())
""",
    "a notebook's kernel": PRINTS
    + """
import select, socket
ours, theirs = socket.socketpair()
while True:
    select.select([ours], [], [], 100)
""",
    "DataLoader processes": TORCH
    + DDP
    + """
from torch.utils.data import DataLoader, Dataset
import time
class Samples(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, _):
        time.sleep(0.05)
        return torch.randn(64)
for batch in DataLoader(Samples(), batch_size=8, num_workers=1):
    step(model, optimizer)
    print("step", flush=True)
""",
    "one rank": PRINTS + "while True:\n    threading.Event().wait(100)\n",
}

LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, number):
        print("step", number, flush=True)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, logger=False,
    enable_checkpointing=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(512, 64)), batch_size=8))
"""

SHELL = "while :; do sleep 1; echo working; done"

SERVICE = """
script: train.py
nproc_per_node: 2
services:
  server:
    command: python3 -u -m http.server -b 0.0.0.0 $PORT
"""


class SoakedJob:
    """One healthy job in a folder of its own."""

    def __init__(self, name: str, folder: Path, words: list[str], seconds: float) -> None:
        """Start it; its output goes to a file."""
        self.name = name
        self._path = folder / "output.txt"
        with self._path.open("w") as output:
            self._process = subprocess.Popen(
                [CLUSTERRUN, f"--hang-timeout={seconds:g}", *words],
                cwd=folder,
                env={**os.environ, "HANG_TIMEOUT": str(seconds)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def fault(self) -> str:
        """Return why it is not healthy; "" if it is."""
        text = self._path.read_text(errors="replace")
        if signs := [line for line in text.splitlines() if any(sign in line for sign in SIGNS)]:
            return signs[0]
        if (code := self._process.poll()) is not None:
            return f"ended with {code}: {text[-2000:]}"
        return ""

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)


def started(home: Path, seconds: float) -> list[SoakedJob]:
    """Start all kinds that can run here."""
    jobs = []
    has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "lightning")}
    texts = {**KINDS, **({"Lightning": LIGHTNING} if has["lightning"] else {})}
    for name, text in texts.items():
        if "torch" in text and not has["torch"]:
            continue
        folder = home / name.replace(" ", "_")
        folder.mkdir()
        (folder / "train.py").write_text(text)
        ranks = "1" if name == "one rank" else "2"
        jobs.append(SoakedJob(name, folder, ["--nproc-per-node", ranks, "train.py"], seconds))
    for name, words in (
        ("a shell script", ["--nproc-per-node", "2", "--no-python", "bash", "-c", SHELL]),
        ("a service", ["--config", "job.yaml"]),
    ):
        folder = home / name.replace(" ", "_")
        folder.mkdir()
        (folder / "train.py").write_text(KINDS["evaluation with long pauses"])
        (folder / "job.yaml").write_text(SERVICE)
        jobs.append(SoakedJob(name, folder, words, seconds))
    return jobs


def main() -> None:
    """Soak, and print what became of each."""
    arguments = argparse.ArgumentParser(description="See that healthy jobs are not taken for hung.")
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--hang-timeout", type=float, default=30.0)
    options = arguments.parse_args()
    exit_on_sigterm()
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as home:
        jobs = started(Path(home), options.hang_timeout)
        until = time.monotonic() + 60 * options.minutes
        try:
            while time.monotonic() < until:
                time.sleep(min(5.0, max(0.0, until - time.monotonic())))
                for job in jobs:
                    if job.name not in faults and (fault := job.fault()):
                        faults[job.name] = fault
                        print(f"{job.name}: {fault}", flush=True)
        finally:
            for job in jobs:
                job.close()
    print(
        f"{len(jobs)} healthy jobs for {options.minutes:g} minutes with --hang-timeout"
        f" {options.hang_timeout:g}: {len(faults)} taken for hung, or ended"
    )
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
