"""Rank 1 fails in the first attempt only."""

import os
import sys

if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    sys.exit(3)
