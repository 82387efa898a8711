import os.path

RANK = os.path.expandvars("$RANK-${LOCAL_RANK}")
