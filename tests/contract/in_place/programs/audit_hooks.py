"""An audit hook that the script adds hears of its own doings."""

import os
import sys

heard = []
sys.addaudithook(lambda event, arguments: heard.append(event) if event.startswith("os.") else None)
os.listdir(".")
os.putenv("NAME", "value")
print(heard)
