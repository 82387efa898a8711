"""The options of commands about a job that was submitted."""

from clusterrun.sources.submissions.rows import TO

ROWS = (TO,)
