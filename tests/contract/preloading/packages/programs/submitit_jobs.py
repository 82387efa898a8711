"""Functions of the script in submitit's local jobs."""

import os

import torch
import submitit


def square(number):
    return torch.tensor(number).square().item()


executor = submitit.LocalExecutor(folder="jobs-" + os.environ["RANK"])
executor.update_parameters(timeout_min=2)
jobs = [executor.submit(square, number) for number in range(3)]
print("found", [job.result() for job in jobs])
