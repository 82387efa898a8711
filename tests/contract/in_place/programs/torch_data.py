"""DataLoader with two workers by fork and one by spawn: data, seeds, errors, classes of __main__."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([index**2, info.id, torch.randint(1000, (1,)).item()])


class Counting(IterableDataset):
    def __iter__(self):
        return iter([torch.get_num_threads(), len(__name__)])


class Failing(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise LookupError("in a worker")


def init(worker):
    assert get_worker_info().id == worker


if __name__ == "__main__":
    torch.manual_seed(0)
    for batch in DataLoader(Squares(), batch_size=2, num_workers=2, worker_init_fn=init):
        print(batch.tolist())
    for method, workers in (("fork", 2), ("spawn", 1)):
        loader = DataLoader(Counting(), None, num_workers=workers, multiprocessing_context=method)
        print(method, [batch for batch in loader])
    try:
        list(DataLoader(Failing(), num_workers=1))
    except LookupError as error:
        print(str(error).splitlines()[0], str(error).splitlines()[-1])
