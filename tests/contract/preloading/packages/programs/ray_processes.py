"""Functions and classes of the script in ray's processes; each rank has a ray of its own."""

import torch
import ray


@ray.remote
def square(number):
    return torch.tensor(number).square().item()


@ray.remote
class Sum:
    def __init__(self):
        self.sum = 0

    def add(self, number):
        self.sum += number
        return self.sum


ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
total = Sum.remote()
print("found", ray.get([square.remote(n) for n in range(4)] + [total.add.remote(n) for n in range(4)]))
ray.shutdown()
