"""High-Flyer's platform: clusterrun --suspend-hook "python hfai_suspend_hook.py" train.py."""

import sys
import time

import hfai

if sys.argv[1:] == ["ready"]:
    hfai.client.go_suspend()
else:
    while not hfai.client.receive_suspend_command():
        time.sleep(1)
