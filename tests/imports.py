"""Code that another process runs, with names of the product."""

from collections.abc import Callable


def imports(*names: Callable[..., object]) -> str:
    """Return the lines that import these functions and classes, wherever the product has them."""
    return "".join(f"from {one.__module__} import {one.__name__}\n" for one in names)
