"""Show what torch imports only when a script uses it: what preloading it saves each rank.

A script's ``import torch`` is not all: the first optimizer, for one, imports torch's compiler. For
each such action a fresh Python imports torch, does what must come before, and then the action, once
as it is and once with the action's followers imported first. Prints rows of a Markdown table, with
medians of processor time.
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median
from typing import NamedTuple


class Action(NamedTuple):
    """Something that a script does after its imports."""

    title: str
    announced_by: str
    """Names in a script's source that tell that it will do so."""
    followers: tuple[str, ...]
    """Modules to preload, whose import brings all others that the action needs."""
    before: str
    """What must have been done already; empty if nothing."""
    itself: str


class Found(NamedTuple):
    """What a fresh Python finds when it does an action."""

    modules: int
    """So many were imported."""
    asked_for: list[str]
    """Those among them that no other module's import asked for."""
    milliseconds: float
    """Of processor time."""
    megabytes: float
    """Of memory that the process holds more (PSS)."""


MODEL = "model = nn.Linear(8, 8)"
LOSS = f"{MODEL}; loss = model(torch.ones(8)).sum()"
GRADIENTS = f"{LOSS}; loss.backward()"
DATA = "data = TensorDataset(torch.ones(8, 2))"
GROUP = "dist.init_process_group('gloo')"

DYNAMO = ("torch._dynamo",)
"""Torch's compiler; optimizers and DistributedDataParallel tell it to leave them alone."""
MONITOR = ("torch.profiler._cupti_monitor",)
QUEUES = ("multiprocessing.queues", "multiprocessing.popen_fork")
SAVING = ("torch.utils.serialization",)
PRINTING = ("torch._subclasses.schema_check_mode",)
MESH = ("torch.utils._device",)

ACTIONS = (
    Action("init_process_group", "init_process_group", (), "", GROUP),
    Action("first all_reduce", "all_reduce", (), GROUP, "dist.all_reduce(torch.ones(1))"),
    Action(
        "init_device_mesh", "init_device_mesh", MESH, GROUP, "dist.init_device_mesh('cpu', [1])"
    ),
    Action(
        "DistributedDataParallel",
        "DistributedDataParallel, DDP",
        DYNAMO,
        f"{GROUP}; {MODEL}",
        "nn.parallel.DistributedDataParallel(model)",
    ),
    Action(
        "fully_shard",
        "fully_shard",
        (*DYNAMO, *MESH),
        f"from torch.distributed.fsdp import fully_shard; {GROUP}; {MODEL}",
        "fully_shard(model)",
    ),
    *(
        Action(name, f"{name}, optim", DYNAMO, GRADIENTS, f"torch.optim.{name}(model.parameters())")
        for name in ("SGD", "Adam", "AdamW")
    ),
    *(
        Action(
            f"{name}: first step",
            f"{name}, optim",
            MONITOR,
            f"{GRADIENTS}; optimizer = torch.optim.{name}(model.parameters())",
            "optimizer.step()",
        )
        for name in ("SGD", "AdamW")
    ),
    Action(
        "lr_scheduler",
        "lr_scheduler",
        (),
        f"{MODEL}; optimizer = torch.optim.SGD(model.parameters())",
        "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)",
    ),
    Action("forward", "-", (), MODEL, "model(torch.ones(8)).sum()"),
    Action("backward", "backward", (), LOSS, "loss.backward()"),
    Action(
        "clip_grad_norm_",
        "clip_grad_norm_",
        (),
        GRADIENTS,
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    Action("autocast", "autocast", (), MODEL, "with torch.autocast('cpu'): model(torch.ones(8))"),
    Action("GradScaler", "GradScaler", (), "", "torch.amp.GradScaler('cpu')"),
    Action("DataLoader", "DataLoader", MONITOR, DATA, "list(DataLoader(data))"),
    Action(
        "DataLoader with workers",
        "num_workers",
        (*QUEUES, *MONITOR),
        DATA,
        "list(DataLoader(data, num_workers=1))",
    ),
    Action(
        "DistributedSampler",
        "DistributedSampler",
        (),
        f"{GROUP}; {DATA}",
        "list(DistributedSampler(data))",
    ),
    Action("torch.save", "save", SAVING, MODEL, "torch.save(model.state_dict(), io.BytesIO())"),
    Action(
        "torch.load",
        "load",
        (),
        f"{MODEL}; file = io.BytesIO(); torch.save(model.state_dict(), file); file.seek(0)",
        "torch.load(file)",
    ),
    Action("print a tensor", "print", PRINTING, "tensor = torch.ones(2)", "repr(tensor)"),
    Action("manual_seed", "manual_seed", (), "", "torch.manual_seed(1)"),
    Action("cuda.is_available", "is_available", (), "", "torch.cuda.is_available()"),
)

PROGRAM = """
import importlib, io, json, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def proportional_kilobytes():
    with open("/proc/self/smaps_rollup") as rollup:
        return int(next(line for line in rollup if line.startswith("Pss:")).split()[1])

class Outermost:
    "First of sys.meta_path: notes modules that no other module's import asks for."
    def __init__(self):
        self.names = []
    def find_spec(self, name, path=None, target=None):
        frame, imports = sys._getframe(), 0
        while frame:
            imports += frame.f_code.co_name == "_find_and_load"
            frame = frame.f_back
        if imports == 1:
            self.names.append(name)

before, action, followers = sys.argv[1:4]
for name in followers.split():
    importlib.import_module(name)
exec(before)
code = compile(action, "action", "exec")
outermost = Outermost()
sys.meta_path.insert(0, outermost)
there, held, start = set(sys.modules), proportional_kilobytes(), time.process_time()
exec(code)
taken = time.process_time() - start
json.dump(
    {
        "modules": len(set(sys.modules) - there),
        "asked_for": [name for name in outermost.names if name in sys.modules],
        "milliseconds": 1000 * taken,
        "megabytes": (proportional_kilobytes() - held) / 1000,
    },
    sys.stdout,
)
"""


def main() -> None:
    """Measure each action, then print its row."""
    parser = argparse.ArgumentParser(description="Show what torch imports only when it is used.")
    parser.add_argument("--runs", type=int, default=5, help="of each action; the median counts")
    parser.add_argument("--only", default="", help="actions with this text in their title")
    options = parser.parse_args()
    print("| action | announced by | imports | modules | ms | MB | preloaded | modules | ms |")
    print(9 * "| --- " + "|")
    for action in ACTIONS:
        if options.only in action.title:
            print(row(action, options.runs), flush=True)


def row(action: Action, runs: int) -> str:
    """Return the medians of an action, alone and after its followers, as a row of a table."""
    alone = [measured(action, ()) for _ in range(runs)]
    cells = [
        action.title,
        action.announced_by,
        ", ".join(alone[0].asked_for) or "-",
        str(alone[0].modules),
        f"{median(run.milliseconds for run in alone):.0f}",
        f"{median(run.megabytes for run in alone):.0f}",
    ]
    if action.followers:
        preloaded = [measured(action, action.followers) for _ in range(runs)]
        cells += [
            ", ".join(action.followers),
            str(preloaded[0].modules),
            f"{median(run.milliseconds for run in preloaded):.0f}",
        ]
    else:
        cells += ["-", "-", "-"]
    return f"| {' | '.join(cells)} |"


def measured(action: Action, followers: tuple[str, ...]) -> Found:
    """Return what one fresh Python finds, which has imported ``followers`` right after torch."""
    command = [sys.executable, "-c", PROGRAM, action.before, action.itself, " ".join(followers)]
    # A world of one, on a port that the system chooses.
    world = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environ = {**os.environ, **world, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, check=True, timeout=120, text=True
    )
    return Found(**json.loads(done.stdout))


if __name__ == "__main__":
    main()
