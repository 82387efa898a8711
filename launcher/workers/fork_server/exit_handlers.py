"""What C libraries do at the end of a process, where it is known to be of no use to a worker.

The static destructors of torch's libraries take 0.16 s of CPU time and copy 17,000 pages in each
worker, only to free what the kernel frees a moment later. ``exit`` calls what libraries have asked
for in reverse order. So a handler that ends the process is put behind those of torch: what any
library or program has asked for later is still called, what was asked for before is not.
"""

from __future__ import annotations

import os

from .libc import end_at_this_handler

_PACKAGES = ("torch", "numpy", "numpy.libs", "nvidia", "triton", "lib-dynload")
"""Folders whose libraries have nothing to write out at the end."""

_OF_THE_SYSTEM = (
    *("ld-linux", "libc.", "libdl.", "libm.", "libpthread.", "librt.", "libutil.", "libnss_"),
    *("libstdc++.", "libgcc_s.", "libgomp.", "libpython", "libffi.", "libexpat.", "libuuid."),
    *("libz.", "libbz2.", "liblzma.", "libssl.", "libcrypto.", "libsqlite3."),
)


def skip_those_of_torch() -> None:
    """Have workers end at the handlers that are there now; call it right behind torch's import.

    Nothing is skipped if there are other libraries, whose handlers may matter: HDF5 writes open
    files out in its own.
    """
    with open("/proc/self/maps") as maps:
        paths = {line[line.index("/") :].rstrip() for line in maps if "/" in line}
    libraries = {path for path in paths if ".so" in os.path.basename(path)}
    if all(_is_known(path) for path in libraries):
        end_at_this_handler()


def _is_known(path: str) -> bool:
    folders, _, name = path.rpartition("/")
    return name.startswith(_OF_THE_SYSTEM) or any(
        package in _PACKAGES for package in folders.split("/")
    )
