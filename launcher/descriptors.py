"""Descriptors that a forked child must not hold, as others wait for their last copy to be closed."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor of this process that is not in ``keep``.

    Those that are open are looked up: the limit may be 1,073,741,816, and a Python that was built
    without close_range (conda's) would take minutes to try each number below it.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The folder's own is closed already.
            with suppress(OSError):
                os.close(int(entry.name))
