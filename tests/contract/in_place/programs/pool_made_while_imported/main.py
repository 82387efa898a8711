"""A pool of processes that a local module started while it was imported works in the script."""

import makes_pool

if __name__ == "__main__":
    print(makes_pool.POOL.map(abs, [-1, -2]))
    makes_pool.POOL.close()
    makes_pool.POOL.join()
