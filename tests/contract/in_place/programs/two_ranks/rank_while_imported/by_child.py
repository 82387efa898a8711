import subprocess

RANK = subprocess.run(["printenv", "RANK"], capture_output=True).stdout.strip()
