"""One module for each command, and the table of them."""
