"""What is imported once for all ranks of a call: the packages that the caller has imported, too."""

import sys
from collections.abc import Mapping

from clusterrun.job.sources import PREFIX
from clusterrun.workers.fork_server.preloading.packages import (
    PATCHES_OTHERS,
    SAME_AFTER_A_FORK,
    WORTH_A_FORK,
)

_NAMES = {"preload", "start_method"}


def modules_to_preload(
    options: Mapping[str, object], environ: Mapping[str, str], *, stays: bool
) -> dict[str, str]:
    """Return the keyword; {} if the user has set it, or if nothing that takes time is imported.

    The workers' fork server reads what a script imports. A function has no such lines, but what it
    uses its caller has mostly imported.

    Args:
        options: of the call.
        environ: the environment of the job.
        stays: whether the fork server stays after the job: then a fork from it is faster than a new
            interpreter, even if it has imported nothing.

    """
    imported = {name for name in SAME_AFTER_A_FORK if name in sys.modules}
    patched = any(name in sys.modules for name in PATCHES_OTHERS)
    is_set = options.keys() & _NAMES or any(PREFIX + name.upper() in environ for name in _NAMES)
    if is_set:
        return {}
    if patched or not imported & WORTH_A_FORK:
        return {"preload": "none"} if stays else {}
    # In the order in which the caller has imported them.
    return {"preload": ",".join(name for name in list(sys.modules) if name in imported)}
