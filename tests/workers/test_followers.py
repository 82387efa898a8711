"""Which modules are imported behind torch, for what a script will call."""

import pytest

from launcher.workers.fork_server.followers import FOLLOWERS, followers_of_torch


@pytest.mark.parametrize("word", ["AdamW", "DDP", "DistributedDataParallel", "optim", "Trainer"])
def test_what_will_import_them(word: str) -> None:
    """An optimizer or DistributedDataParallel, by any of their names."""
    assert followers_of_torch({"main", word}, {"digits"}) == FOLLOWERS


def test_nothing_will() -> None:
    """A script that only computes and talks is not made to wait."""
    assert followers_of_torch({"torch", "all_reduce", "init_process_group"}, set()) == ()


@pytest.mark.parametrize("text", ["TORCH_LOGS", "TORCHDYNAMO_DISABLE", "TORCHINDUCTOR_CACHE_DIR"])
def test_a_script_that_may_set_what_they_read(text: str) -> None:
    """They would read it too early."""
    assert followers_of_torch({"AdamW"}, {text}) == ()
