"""Functions of the script in joblib's processes and threads, and in its cache."""

import os

import torch
import joblib


def square(number):
    return torch.tensor(number).square().item()


tasks = [joblib.delayed(square)(number) for number in range(4)]
ways = ["loky", "multiprocessing", "threading"]
print("found", [joblib.Parallel(n_jobs=2, backend=way)(tasks) for way in ways])
memory = joblib.Memory("cache-" + os.environ["RANK"], verbose=0)
print("found", [memory.cache(square)(3) for _ in range(2)])
