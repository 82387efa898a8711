import asyncio
import locale
import os
import socket
import sys
import warnings

sys.setrecursionlimit(2345)
sys.setswitchinterval(0.02)
socket.setdefaulttimeout(7)
os.environ["SET_WHILE_IMPORTED"] = "1"
os.environ.pop("TERM", None)
locale.setlocale(locale.LC_NUMERIC, "C")
warnings.simplefilter("ignore", ResourceWarning)
sys.path.append("appended by sets_state")
sys.dont_write_bytecode = True
POLICY = asyncio.get_event_loop_policy()
