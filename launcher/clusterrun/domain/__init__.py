"""The nouns: frozen, without I/O; each is made by one room and read by the next."""
