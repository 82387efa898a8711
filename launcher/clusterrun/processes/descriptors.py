"""Closes descriptors that a forked child must not hold open."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def close_all_but(keep: Collection[int]) -> None:
    """Close every open descriptor of this process that is not in ``keep``.

    ``os.closerange`` would take minutes where the limit is 1,073,741,816 and Python was built
    without close_range (conda's).
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The descriptor that listed the folder is closed already.
            with suppress(OSError):
                os.close(int(entry.name))
