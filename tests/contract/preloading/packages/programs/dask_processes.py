"""Functions of the script in dask's processes, of a pool and of a cluster."""

import torch
import dask
from dask.distributed import Client, LocalCluster


def square(number):
    return torch.tensor(number).square().item()


if __name__ == "__main__":
    tasks = [dask.delayed(square)(number) for number in range(4)]
    in_pool = dask.compute(*tasks, scheduler="processes", num_workers=2)
    with LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            in_cluster = client.gather(client.map(square, range(4)))
    print("found", in_pool, in_cluster)
