"""What the jobs of ``clusterrun doctor --pilot`` run: a training script as people write it.

Its first argument is what happens, its second one the backend, "" for NCCL where torch has a GPU. It
writes what each rank finds to a folder, which a variable names, and imports torch as users' scripts do.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER = Path(os.environ["_CLUSTERRUN_PILOT"])
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

MIB = 1 << 20
SIZES = (MIB, 64 * MIB, 512 * MIB)
CPU_SIZES = (MIB, 16 * MIB)
HELD = 64 * MIB
"""Bytes that each rank holds on its GPU."""
STEPS_BEFORE_READY = 3
SECONDS_AT_MOST = 150.0
"""Then a rank that nobody has ended fails."""


def write(name: str, found: object) -> None:
    """Write a file at once, so that its reader sees all of it or none."""
    new = FOLDER / f".{name}"
    new.write_text(json.dumps(found))
    new.replace(FOLDER / name)


class RankInGroup:
    """This rank, in its process group."""

    def __init__(self, backend: str) -> None:
        self.began_without_cuda = not torch.cuda.is_initialized()
        has_gpu = torch.cuda.is_available()
        self.backend = backend or ("nccl" if has_gpu else "gloo")
        number = LOCAL_RANK % max(1, torch.cuda.device_count())
        self.gpu = torch.device("cuda", number) if has_gpu else torch.device("cpu")
        if has_gpu:
            torch.cuda.set_device(self.gpu)
        self.held = torch.ones(HELD // 4, device=self.gpu)
        # gloo adds up in main memory.
        self.device = self.gpu if self.backend == "nccl" else torch.device("cpu")
        dist.init_process_group(self.backend)

    def total(self, value: float, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> float:
        """Return a value of all ranks."""
        values = torch.tensor([value], device=self.device)
        dist.all_reduce(values, op=op)
        return float(values.item())

    def facts(self) -> dict[str, Any]:
        """Return what this rank is, and what it was given."""
        has_gpu = self.gpu.type == "cuda"
        uuid = getattr(torch.cuda.get_device_properties(self.gpu), "uuid", "") if has_gpu else ""
        return {
            "pid": os.getpid(),
            "node": int(os.environ["GROUP_RANK"]),
            "rank": RANK,
            "size": dist.get_world_size(),
            "local_rank": LOCAL_RANK,
            "local_size": int(os.environ["LOCAL_WORLD_SIZE"]),
            "attempt": ATTEMPT,
            "backend": self.backend,
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else "",
            "cpus": sorted(os.sched_getaffinity(0)),
            "uuid": str(uuid),
            "fresh": self.began_without_cuda,
        }


def train(rank: RankInGroup, facts: dict[str, Any]) -> None:
    """Train with DDP, compare weights, and time all_reduce."""
    torch.manual_seed(RANK)
    data = torch.randn(512, 32, device=rank.device)
    target = data.sum(1, keepdim=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1).to(rank.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = float(sum(each.detach().double().sum() for each in model.parameters()))
    agree = rank.total(weight, dist.ReduceOp.MIN) == rank.total(weight, dist.ReduceOp.MAX)
    sums = []
    for size in SIZES if rank.backend == "nccl" else CPU_SIZES:
        values = torch.ones(size // 4, device=rank.device)
        best = float("inf")
        for _ in range(5):
            rank.total(0.0)
            began = time.monotonic()
            dist.all_reduce(values)
            values[0].item()
            best = min(best, rank.total(time.monotonic() - began, dist.ReduceOp.MAX))
        sums.append([size, best])
    learnt = losses[-1] < losses[0] / 100
    write(f"trained-{RANK}", {**facts, "learnt": learnt, "agree": agree, "sums": sums})
    dist.destroy_process_group()


def step_until_ended(rank: RankInGroup, facts: dict[str, Any], happens: str) -> None:
    """Step until something happens: this rank fails, is to save, or is killed."""
    asked: list[int] = []
    if happens == "save":
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    if happens == "kill":
        # As a data loader: it must not outlive the job.
        loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        facts = {**facts, "loader": loader.pid}
    until = time.monotonic() + SECONDS_AT_MOST
    step, is_last = 0, facts["size"] - 1 == RANK
    while time.monotonic() < until:
        is_to_save = rank.total(float(bool(asked)), dist.ReduceOp.MAX) > 0
        step += 1
        if step == STEPS_BEFORE_READY:
            write(f"ready-{ATTEMPT}-{RANK}", facts)
            if happens == "spare" and ATTEMPT:
                dist.destroy_process_group()
                return
        if is_to_save:
            torch.save(
                {"step": step, "held": rank.held[:4].cpu()}, FOLDER / f"checkpoint-{RANK}.pt"
            )
            write(f"saved-{RANK}", step)
            dist.destroy_process_group()
            return
        if happens == "fail" and step == STEPS_BEFORE_READY + 20 and is_last:
            write("failed", time.time())
            raise RuntimeError("planned by the pilot")
        time.sleep(0.02)
    raise TimeoutError("this rank was not ended")


def collect() -> None:
    """Give node 0 the page of each node."""
    dist.init_process_group("gloo")
    page = json.loads((FOLDER / "page.json").read_text()) if LOCAL_RANK == 0 else None
    pages: list[object] = [None] * dist.get_world_size()
    dist.gather_object(page, pages if RANK == 0 else None)
    if RANK == 0:
        write("pages.json", [each for each in pages if each])
    dist.destroy_process_group()


def main(happens: str, backend: str) -> None:
    """Do it."""
    if happens == "collect":
        collect()
        return
    rank = RankInGroup(backend)
    facts = rank.facts()
    if happens == "train":
        train(rank, facts)
    else:
        step_until_ended(rank, facts, happens)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
