"""Imports modules before workers are forked, and finds out whether that is safe."""
