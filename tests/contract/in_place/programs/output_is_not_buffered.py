"""With -u what is written is out at once: os._exit loses nothing."""

import os
import sys

sys.stdout.write("written")
sys.stdout.buffer.write(b" as bytes")
sys.stderr.write("on stderr")
os._exit(0)
