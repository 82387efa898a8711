"""Train on digits with a DistributedDataParallel of one's own, as examples of before torch's do.

Hooks on parameters queue one coalesced all_reduce for the end of each backward pass, and each step
makes a new group of rank 0 alone and reduces the gradients in it once more.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class DistributedDataParallel(nn.Module):
    """Averages gradients over all ranks when a backward pass is done."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.needs_reduction = False
        for state in module.state_dict().values():
            dist.broadcast(state, 0)
        for parameter in module.parameters():
            parameter.register_hook(self.queue_reduction)

    def forward(self, *inputs):
        self.needs_reduction = True
        return self.module(*inputs)

    def queue_reduction(self, _gradient):
        Variable._execution_engine.queue_callback(self.reduce)

    def reduce(self):
        if not self.needs_reduction:
            return
        self.needs_reduction = False
        gradients = [parameter.grad for parameter in self.module.parameters()]
        coalesced = _flatten_dense_tensors(gradients)
        dist.all_reduce(coalesced)
        coalesced /= dist.get_world_size()
        for mine, reduced in zip(gradients, _unflatten_dense_tensors(coalesced, gradients)):
            mine.copy_(reduced)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, images):
        features = nn.functional.max_pool2d(self.convolution(images).relu(), 2)
        return self.last(self.hidden(features.flatten(1)).relu())


def average_gradients(model):
    """Reduce in a group of rank 0 alone; other ranks are told that they are not in it."""
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(labels)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    train, test = digits()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = DistributedSampler(train)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(train, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            average_gradients(model)
            optimizer.step()
    with torch.no_grad():
        guesses = model.module(test.tensors[0]).argmax(1)
    total = sum(parameter.double().sum() for parameter in model.parameters())
    same = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(same, total)
    right = (guesses == test.tensors[1]).float().mean().item()
    print(f"accuracy {100 * right:.1f} same {all(one == total for one in same)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
