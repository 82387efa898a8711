"""Closes what a forked child must not hold open: others wait until the last copy is closed."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor of this process that is not in ``keep``.

    Only those that are open are closed: where the limit is 1,073,741,816, a Python that was built
    without close_range (conda's) would take minutes to close each number below it.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The descriptor that listed the folder is closed already.
            with suppress(OSError):
                os.close(int(entry.name))
