"""Threads of all kinds are used before and after a fork, a model is trained, scripted and saved."""

import os
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, data):
        return self.layer(data).relu()


def add_one(data: torch.Tensor) -> torch.Tensor:
    return data + 1


def main():
    where = f"file://{os.path.abspath('rendezvous')}"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.rand(256, 64)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")
    big = torch.rand(500, 500)
    print(big.matmul(big).shape, torch.get_num_threads(), torch.backends.mkldnn.is_available())
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    print(os.waitpid(pid, 0)[1] >> 8)
    print(torch.jit.script(add_one)(torch.ones(1)).item())
    torch.save(model.module, "model.pt")
    print(type(torch.load("model.pt", weights_only=False)) is Network)
    print(pickle.loads(pickle.dumps(Network)) is Network)
    dist.destroy_process_group()
    os.unlink("model.pt")
    if os.path.exists("rendezvous"):
        os.unlink("rendezvous")


if __name__ == "__main__":
    main()
