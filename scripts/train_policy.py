"""Train a policy with DDP; its actions are drawn by the servers of configs/train_and_serve.yaml.

Each step, every rank asks its server for actions, and rank 0 pushes the new weights to all of them. The
reward is 1 for the action that is the place of the largest of the first three numbers of a state.
"""

import argparse
import io
import json
import os
from urllib.request import Request, urlopen

import torch
import torch.distributed as dist
from serve_policy import ACTIONS, STATES
from torch.nn.parallel import DistributedDataParallel

BATCH = 256


def asked(url: str, method: str, body: bytes) -> dict[str, list[int]]:
    """Return a server's answer."""
    request = Request(url, body, method=method)  # noqa: S310 - an address of the job's own
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        found: dict[str, list[int]] = json.load(answer)
    return found


def push(model: torch.nn.Module, servers: list[str]) -> None:
    weights = io.BytesIO()
    torch.save(model.state_dict(), weights)
    for server in servers:
        asked(f"{server}/weights", "PUT", weights.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a policy beside servers that draw its actions."
    )
    parser.add_argument("--servers", required=True, help="URLs, with commas between them")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, servers = dist.get_rank(), options.servers.split(",")
    own = servers[int(os.environ["LOCAL_RANK"]) % len(servers)]
    torch.manual_seed(rank)
    model = torch.nn.Linear(STATES, ACTIONS)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.1)
    mean = torch.zeros(1)
    for step in range(options.steps):
        if rank == 0:
            push(model, servers)
        # No rank asks before the servers have this step's weights.
        dist.barrier()
        states = torch.randn(BATCH, STATES)
        body = json.dumps({"states": states.tolist()}).encode()
        actions = torch.tensor(asked(f"{own}/actions", "POST", body)["actions"])
        rewards = (actions == states[:, :ACTIONS].argmax(dim=1)).float()
        chances = torch.log_softmax(ddp(states), dim=1)[torch.arange(BATCH), actions]
        optimizer.zero_grad()
        (-(rewards - rewards.mean()) * chances).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = rewards.mean()
        dist.all_reduce(mean)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: reward {mean.item() / dist.get_world_size():.2f}", flush=True)
    if rank == 0:
        print(f"trained: reward {mean.item() / dist.get_world_size():.2f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
