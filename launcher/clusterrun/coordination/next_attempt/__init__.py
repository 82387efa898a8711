"""What follows an attempt: whether there is another one, and which nodes take part in it."""
