"""The rows of the table of options: a module for each group, in the order of --help."""
