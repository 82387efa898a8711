"""What uses the launcher as its users do: by its command line, or by an agent that it has called."""
