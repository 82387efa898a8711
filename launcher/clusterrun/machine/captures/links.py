"""Symbolic links, followed within a root that is not the file system's own."""

import errno
from collections.abc import Callable

MOST_LINKS = 40
"""As many as the kernel follows on one path."""


def follow(path: str, link: Callable[[str], str]) -> str:
    """Return ``path`` with every link in it followed.

    Args:
        path: relative to the root.
        link: returns the target of the link at a path; OSError if it is no link.

    Raises:
        OSError: a link leads out of the root, or there are too many.

    """
    done: list[str] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                raise FileNotFoundError(errno.ENOENT, "leads out of the root", path)
            done.pop()
            continue
        try:
            target = link("/".join((*done, part)))
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        if target.startswith("/"):
            done.clear()
        left.extend(target.split("/")[::-1])
    return "/".join(done)
