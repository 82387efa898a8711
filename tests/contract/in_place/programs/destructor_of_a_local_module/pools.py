import functools


class Pool:
    name = "a pool"

    def __del__(self, print=print):
        print("pool is closed")


@functools.lru_cache
def get():
    return Pool()
