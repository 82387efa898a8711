"""The error for a text that is no value of an option."""


class UnreadableError(ValueError):
    """A text is no value of an option: what is wrong with it, and what to type instead."""

    def __init__(self, complaint: str, hint: str) -> None:
        """Take the ``complaint`` ("'x' is not a port") and the ``hint`` ("give a number ...")."""
        super().__init__(complaint)
        self.complaint = complaint
        self.hint = hint
