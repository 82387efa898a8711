"""The training script of the jobs of ``clusterrun doctor --pilot``; it imports torch as users' scripts do.

Its arguments are the scenario and optionally the backend, by default NCCL if torch has a GPU. Each rank
writes JSON files to the folder in the variable ``_CLUSTERRUN_PILOT``.
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
HELD_BYTES = 64 * MIB
"""Bytes that each rank allocates on its GPU."""
STEPS_BEFORE_READY = 3
MAX_SECONDS = 150.0
"""After this time, a rank that was not stopped fails."""


def write(name: str, found: object) -> None:
    """Write a JSON file atomically."""
    new = FOLDER / f".{name}"
    new.write_text(json.dumps(found))
    new.replace(FOLDER / name)


class DistributedRank:
    """This rank, its device and its process group."""

    def __init__(self, backend: str) -> None:
        self.cuda_was_uninitialized = not torch.cuda.is_initialized()
        has_gpu = torch.cuda.is_available()
        self.backend = backend or ("nccl" if has_gpu else "gloo")
        number = LOCAL_RANK % max(1, torch.cuda.device_count())
        self.gpu = torch.device("cuda", number) if has_gpu else torch.device("cpu")
        if has_gpu:
            torch.cuda.set_device(self.gpu)
        self.held = torch.ones(HELD_BYTES // 4, device=self.gpu)
        # gloo reduces in main memory.
        self.device = self.gpu if self.backend == "nccl" else torch.device("cpu")
        dist.init_process_group(self.backend)

    def all_reduce(self, value: float, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> float:
        """Return the sum, or another reduction, of a value of each rank."""
        values = torch.tensor([value], device=self.device)
        dist.all_reduce(values, op=op)
        return float(values.item())

    def facts(self) -> dict[str, Any]:
        """Return what this rank was given: its place in the job, its CPUs and its GPU."""
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
            "fresh": self.cuda_was_uninitialized,
        }


def train(rank: DistributedRank, facts: dict[str, Any]) -> None:
    """Train with DDP, compare the weights of all ranks, and time all_reduce."""
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
    weights_agree = rank.all_reduce(weight, dist.ReduceOp.MIN) == rank.all_reduce(
        weight, dist.ReduceOp.MAX
    )
    sums = []
    for size in SIZES if rank.backend == "nccl" else CPU_SIZES:
        values = torch.ones(size // 4, device=rank.device)
        best = float("inf")
        for _ in range(5):
            rank.all_reduce(0.0)
            began = time.monotonic()
            dist.all_reduce(values)
            values[0].item()
            best = min(best, rank.all_reduce(time.monotonic() - began, dist.ReduceOp.MAX))
        sums.append([size, best])
    has_learnt = losses[-1] < losses[0] / 100
    write(
        f"trained-{RANK}",
        {**facts, "has_learnt": has_learnt, "weights_agree": weights_agree, "sums": sums},
    )
    dist.destroy_process_group()


def step_until_stopped(rank: DistributedRank, facts: dict[str, Any], scenario: str) -> None:
    """Step until this rank fails, must save a checkpoint, or is killed, depending on the scenario."""
    signals: list[int] = []
    if scenario == "save":
        signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    if scenario == "kill":
        # Like a data loader process, this one must not outlive the job.
        loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        facts = {**facts, "loader": loader.pid}
    until = time.monotonic() + MAX_SECONDS
    step, is_last = 0, facts["size"] - 1 == RANK
    while time.monotonic() < until:
        must_save = rank.all_reduce(float(bool(signals)), dist.ReduceOp.MAX) > 0
        step += 1
        if step == STEPS_BEFORE_READY:
            write(f"ready-{ATTEMPT}-{RANK}", facts)
            if scenario == "spare" and ATTEMPT:
                dist.destroy_process_group()
                return
        if must_save:
            torch.save(
                {"step": step, "held": rank.held[:4].cpu()}, FOLDER / f"checkpoint-{RANK}.pt"
            )
            write(f"saved-{RANK}", step)
            dist.destroy_process_group()
            return
        if scenario == "fail" and step == STEPS_BEFORE_READY + 20 and is_last:
            write("failed", time.time())
            raise RuntimeError("planned by the pilot")
        time.sleep(0.02)
    raise TimeoutError("this rank was not ended")


def gather_reports() -> None:
    """Gather the reports of all nodes on node 0."""
    dist.init_process_group("gloo")
    report = json.loads((FOLDER / "report.json").read_text()) if LOCAL_RANK == 0 else None
    reports: list[object] = [None] * dist.get_world_size()
    dist.gather_object(report, reports if RANK == 0 else None)
    if RANK == 0:
        write("reports.json", [each for each in reports if each])
    dist.destroy_process_group()


def main(scenario: str, backend: str) -> None:
    """Run one scenario."""
    if scenario == "collect":
        gather_reports()
        return
    rank = DistributedRank(backend)
    facts = rank.facts()
    if scenario == "train":
        train(rank, facts)
    else:
        step_until_stopped(rank, facts, scenario)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
