"""What is imported before workers are forked, and why not more."""
