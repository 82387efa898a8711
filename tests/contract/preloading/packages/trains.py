"""Trains one step with DDP and AdamW, then writes down what a program finds in its process.

The test puts the text of probe.py below, which has ``facts``. What is found before the training goes into
a file of its own.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import json
import os
import re
import sys
import types

FOLLOWS = ("torch", "sympy", "mpmath")


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    optimizer.step()
    print("found a loss of", loss.item(), flush=True)
    return model, optimizer


def shown(value, depth=0):
    """Return what can be compared of a value: plain values, and of what they are in."""
    if isinstance(value, int) and abs(value) >= 1 << 22:
        return "an address"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return re.sub("0x[0-9a-f]{6,}", "0x", repr(value))[:200]
    if isinstance(value, types.FunctionType):
        defaults = shown((value.__defaults__, value.__kwdefaults__), depth + 1)
        return f"{value.__module__}.{value.__qualname__} {defaults}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    kind = type(value).__qualname__
    if depth == 3:
        return kind
    if isinstance(value, (tuple, list)):
        return f"{kind}{[shown(each, depth + 1) for each in value[:40]]} of {len(value)}"
    if isinstance(value, (set, frozenset)):
        return f"{kind}{sorted(shown(each, depth + 1) for each in value)}"
    if isinstance(value, dict):
        items = sorted(
            (shown(key, depth + 1), shown(each, depth + 1)) for key, each in value.items()
        )
        return f"{kind}{items}"
    inside = getattr(value, "__dict__", None)
    return f"{kind} {shown(inside, depth + 1)}" if isinstance(inside, dict) else kind


def held_by_modules():
    """Yield all that the modules hold, and the members of their classes, by name."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] not in FOLLOWS:
            continue
        for name, value in sorted(vars(module).items()):
            if name in ("__builtins__", "__cached__", "__loader__", "__spec__"):
                continue
            yield f"value {module_name}.{name}", shown(value)
            if isinstance(value, type) and value.__module__ == module_name:
                for member, inner in sorted(vars(value).items()):
                    inner = getattr(inner, "__func__", inner)
                    yield f"value {module_name}.{name}.{member}", shown(inner)


def write_down(when, found):
    with open(f"{os.environ['PROBE_FILE']}_{when}_{os.environ['RANK']}", "w") as file:
        json.dump({name: repr(value) for name, value in found}, file)


# PROBE

write_down("before", facts())
kept = train()
write_down("after", (*facts(), *held_by_modules()))
dist.barrier()
