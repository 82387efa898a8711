"""When a node that waits for others prints that it does."""

SECONDS_TO_FIRST_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0
