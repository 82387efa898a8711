import os

RANK = len(os.environ) - len([name for name in os.environ if name.endswith("RANK")]) > 0
