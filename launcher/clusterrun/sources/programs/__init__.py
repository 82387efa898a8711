"""The program that workers run: a script, a module or a command, and what is wrong with its name."""
