import os

RANK = os.popen("echo $RANK").read().strip()
