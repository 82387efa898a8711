"""torch's default seed is the same everywhere; what follows torch.seed() is not."""

import random

import draws_by_torch
import makes_layer
import numpy
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

data = TensorDataset(torch.arange(20))
print("drawn while imported", draws_by_torch.DRAWN, makes_layer.LAYER.bias.tolist())
print("initial seed", torch.initial_seed())
print("rand", torch.rand(2).tolist())
print("generator", torch.Generator().initial_seed())
print("shuffled", [int(batch[0]) for batch in DataLoader(data, shuffle=True)])
print("sampler", list(RandomSampler(data)))
print("layer", torch.nn.Linear(2, 2).weight.tolist())
torch.manual_seed(1)
print("seeded", torch.rand(1).item(), torch.initial_seed(), torch.randperm(10).tolist())
print("seed", torch.seed())
print("after seed", torch.rand(1).item())
print("random", random.random())
print("numpy", numpy.random.random())
print("threads", torch.get_num_threads(), torch.get_num_interop_threads())
