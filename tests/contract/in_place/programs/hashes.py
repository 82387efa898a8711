"""Hashes of texts where PYTHONHASHSEED gives their seed."""

import sys

print(
    hash("a text"), list({f"text {number}" for number in range(10)}), sys.flags.hash_randomization
)
