"""Hashes of texts, and so the order of sets of texts, are random for each interpreter."""

import sys

print("flag", sys.flags.hash_randomization)
print("hash", hash("a text"), hash(b"bytes"))
print("set", list({f"text {number}" for number in range(50)}))
print("number", hash(12345), hash((1, 2)))
