"""A cluster's variables, typed and with their names as origin."""

from collections.abc import Mapping

from launcher.domain.facts import Fact
from launcher.errors import UsageError


class Variables:
    """Reads the first that is set of several names for the same thing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take the environment."""
        self._environ = environ

    def text(self, *names: str) -> Fact[str] | None:
        """Return the first of these that is set and not empty; None where none is."""
        found = (Fact(self._environ[name], name) for name in names if self._environ.get(name))
        return next(found, None)

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

    def differ(self, *names: str) -> bool:
        """Return whether all of these are set, and not to the same."""
        values = [self._environ.get(name, "") for name in names]
        return all(values) and len(set(values)) > 1
