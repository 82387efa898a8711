from torch import nn

LAYER = nn.Linear(2, 2)
