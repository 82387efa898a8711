"""Rank 0 reads what is piped into the job."""

import os
import sys

print(os.environ["RANK"], input("first? "), repr(sys.stdin.readline()), list(sys.stdin))
