"""The environment variables that each worker gets."""
