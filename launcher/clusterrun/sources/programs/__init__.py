"""The program that workers run, a script, a module or an executable, and errors about it."""
