"""Why two processes that connect do not take each other for parts of one job."""

from enum import Enum, auto

VERSION = 1
"""The version of the protocol that this clusterrun speaks."""


class Fault(Enum):
    """What may be wrong with the other side."""

    NO_CLUSTERRUN = auto()
    OTHER_VERSION = auto()
    HAS_A_TOKEN = auto()
    """And we have none."""
    HAS_NO_TOKEN = auto()
    """And we have one."""
    WRONG_TOKEN = auto()


class HandshakeFailed(Exception):
    """The other side is not one to talk to."""

    def __init__(self, fault: Fault, version: int = VERSION) -> None:
        """Take what is wrong, and the ``version`` that the other side speaks."""
        super().__init__(fault.name)
        self.fault = fault
        self.version = version
