"""A cluster's variables: their values with types, and their names as origin."""

from collections import UserDict

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError

WITHOUT_CLUSTER = "correct the variables, or ignore the cluster with --cluster none"


def check_rank(rank: Fact[int], count: Fact[int]) -> None:
    """Raise a ``UsageError`` unless ``rank`` is one of ``count``."""
    if rank.value >= count.value:
        raise UsageError(
            f"{rank.origin} is {rank.value}, but must be less than {count.origin},"
            f" which is {count.value}",
            WITHOUT_CLUSTER,
        )


class Variables(UserDict[str, str]):
    """The environment. Methods that take several names read the first that is set and not empty."""

    def text(self, *names: str) -> Fact[str] | None:
        found = (Fact(self[name], name) for name in names if self.get(name))
        return next(found, None)

    def first_set(self, *names: str) -> str:
        """Return the name of the first of these that is set and not empty; "" if none is."""
        found = self.text(*names)
        return found.origin if found else ""

    def has_all(self, *names: str) -> bool:
        return all(self.get(name) for name in names)

    def number(self, *names: str) -> Fact[int] | None:
        """Return a number from 0; another text is a ``UsageError``."""
        found = self.text(*names)
        if found is None:
            return None
        if not (found.value.isascii() and found.value.isdigit()):
            raise UsageError(f"{found.origin}: {found.value!r} is not a number", WITHOUT_CLUSTER)
        return Fact(int(found.value), found.origin)

    def require(self, *names: str) -> Fact[int]:
        """Return a number from 0; if none of these is set, that is a ``UsageError``."""
        found = self.number(*names)
        if found is None:
            raise UsageError(
                f"{names[0]} is not set, but other variables of its cluster are",
                "pass it on to this process, or ignore the cluster with --cluster none",
            )
        return found

    def nodes_and_rank(self, nodes: str, *ranks: str) -> tuple[Fact[int], Fact[int]]:
        """Return the number of nodes and the rank of this one, which must be less."""
        count, rank = self.require(nodes), self.require(*ranks)
        check_rank(rank, count)
        return count, rank

    def gpus(self, *names: str) -> Fact[int] | None:
        """Return a number of GPUs; None if it is 0 or CUDA_VISIBLE_DEVICES has another number."""
        given = self.number(*names)
        visible = self.get("CUDA_VISIBLE_DEVICES")
        if given is None or not given.value:
            return None
        if visible is not None and len(visible.split(",")) != given.value:
            return None
        return given

    def differ(self, *names: str) -> bool:
        """Return whether all of these are set, and not to the same."""
        return self.has_all(*names) and len({self[name] for name in names}) > 1
