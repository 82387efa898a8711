import os
import subprocess

command = ["printenv", "RANK"]
RANK = subprocess.run(command, env={**os.environ, "MORE": "1"}, capture_output=True).stdout.strip()
