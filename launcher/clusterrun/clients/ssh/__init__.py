"""``--launcher ssh``: agents on other hosts, and one output, one report and one exit code for all."""
