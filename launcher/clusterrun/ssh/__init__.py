"""Starting a job on other hosts by ssh: the client here, and on each host a starter with its agent."""
