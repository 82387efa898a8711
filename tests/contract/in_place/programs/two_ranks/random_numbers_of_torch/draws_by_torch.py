import torch

DRAWN = torch.rand(2).tolist()
