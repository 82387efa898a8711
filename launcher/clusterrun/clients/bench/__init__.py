"""``clusterrun bench``: one script at several sizes, and what its output says of its speed."""
