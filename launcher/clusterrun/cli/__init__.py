"""The command line: from argv to the exit code. Only this package prints and exits."""
