"""Ranks that print where they run, one of which may fail."""

PRINT_OR_FAIL = """
    import os, time
    from pathlib import Path

    rank, size, local_rank = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    print(f"rank {rank} of {size} ({local_rank}) on {os.uname().nodename}\\n", end="", flush=True)
    assert "CLUSTERRUN_TOKEN" not in os.environ
    job = os.environ.get("SLURM_JOB_ID", "")
    Path(f"rank-{rank}-of-{job}-has-printed").touch()
    if rank == os.environ.get("FAILS"):
        # Its failure ends the other ranks, which may not have printed yet.
        while len(list(Path().glob(f"rank-*-of-{job}-has-printed"))) < int(size):
            time.sleep(0.01)
        raise SystemExit(9)
"""
"""The rank that FAILS names exits with 9 after all ranks have printed."""

RANKS = r"rank \d of \d \(\d\) on \S+"


def two_by_two(host: str = "n") -> list[str]:
    """Return what the ranks of two nodes with two workers each print, if hosts are n0 and n1."""
    return [f"rank {rank} of 4 ({rank % 2}) on {host}{rank // 2}" for rank in range(4)]
