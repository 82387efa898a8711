"""A mistake in the script's last line."""

import os

print("never printed")
print(os.sep
