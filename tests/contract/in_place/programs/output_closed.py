"""A script that closes stdout itself ends well, or as Python says."""

import os
import sys

print("before")
os.close(1)
sys.stderr.write("stdout is closed\n")
print("after")
