"""What is known of a suspension: who wants it, and which ranks have saved.

A *mark* is 1 + a step, as ranks and agents write it into the page that they share; 0 is no step.
"""

from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.domain.bounds import Count

Mark = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""1 + a step; 0: none."""

Step = Annotated[int, Meta(ge=0, lt=1 << 62)]

BY_COMMAND = "clusterrun suspend"
"""A request that a person types. Typed again, it goes on without ranks that others wait for.

A scheduler's does not: it sends its signal to every agent, and not at one moment.
"""

SECONDS_TO_NAME = 5.0
"""Ranks that have not saved by then are named."""

MOST_RANKS = 1024
"""Ranks of one node that are named; the first ones are enough for a report."""

Ranks = Annotated[tuple[Count, ...], Meta(max_length=MOST_RANKS)]


class SaveProgress(Struct, frozen=True):
    """How far the ranks of one node are, once the step is agreed on."""

    mark: Mark
    """The highest at which one of them has saved."""
    unsaved: Ranks
    """Those that have called ``suspend.requested`` and have not saved."""
    silent: Ranks
    """Those that have never called it."""


class SuspendRules(Struct, frozen=True):
    """The job's options about suspensions."""

    grace: float = 30.0
    """Seconds from the agreement in which all ranks have to save."""
    exit_code: int = 75
