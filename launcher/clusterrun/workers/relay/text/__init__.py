"""What workers print, as text: lines, progress bars, tracebacks. Pure."""
