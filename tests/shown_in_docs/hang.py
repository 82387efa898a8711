"""Rank 1 waits for data, and the others wait for rank 1."""

import os
import time


def train() -> None:
    if os.environ["RANK"] == "1":
        wait_for_data()
    else:
        wait_for_rank_1()


def wait_for_data() -> None:
    time.sleep(6)


def wait_for_rank_1() -> None:
    time.sleep(6)


train()
