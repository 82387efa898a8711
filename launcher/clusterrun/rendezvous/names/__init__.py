"""Host names and addresses."""
