"""argv to exit code: the only room that prints or exits."""
