"""Nouns of what is submitted to a scheduler."""
