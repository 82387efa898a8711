"""A cluster's variables, typed and with their names as origin."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError

WITHOUT_CLUSTER = (
    "leave these variables as the cluster has set them, or ignore it by --cluster none"
)


def expect_rank(rank: Fact[int], count: Fact[int]) -> None:
    """Return if ``rank`` is one of ``count``.

    Raises:
        UsageError: it is not.

    """
    if rank.value >= count.value:
        raise UsageError(
            f"{rank.origin} is {rank.value}, and {count.origin} {count.value}:"
            " they don't fit together",
            WITHOUT_CLUSTER,
        )


class Variables:
    """Reads the first that is set of several names for the same thing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take the environment."""
        self._environ = environ

    def text(self, *names: str) -> Fact[str] | None:
        """Return the first of these that is set and not empty; None where none is."""
        found = (Fact(self._environ[name], name) for name in names if self._environ.get(name))
        return next(found, None)

    def sign(self, *names: str) -> str:
        """Return the name of the first of these that is set and not empty; "" where none is."""
        found = self.text(*names)
        return found.origin if found else ""

    def number(self, *names: str) -> Fact[int] | None:
        """Return the same as a number from 0.

        Raises:
            UsageError: it is none.

        """
        found = self.text(*names)
        if found is None:
            return None
        if not (found.value.isascii() and found.value.isdigit()):
            raise UsageError(
                f"{found.origin}: {found.value!r} is not a number",
                "correct it, or ignore the cluster with --cluster none",
            )
        return Fact(int(found.value), found.origin)

    def expect(self, *names: str) -> Fact[int]:
        """Return the same, which has to be there.

        Raises:
            UsageError: none is set, or it is no number.

        """
        found = self.number(*names)
        if found is None:
            raise UsageError(
                f"{names[0]} is not set, and what else the cluster has set says too little",
                "pass it on to this process, or ignore the cluster with --cluster none",
            )
        return found

    def gpus(self, *names: str) -> Fact[int] | None:
        """Return a number of GPUs, unless CUDA_VISIBLE_DEVICES has another number of them now.

        Raises:
            UsageError: it is none.

        """
        given = self.number(*names)
        visible = self._environ.get("CUDA_VISIBLE_DEVICES")
        if given is None or not given.value:
            return None
        if visible is not None and len(visible.split(",")) != given.value:
            return None
        return given

    def differ(self, *names: str) -> bool:
        """Return whether all of these are set, and not to the same."""
        values = [self._environ.get(name, "") for name in names]
        return all(values) and len(set(values)) > 1
