import os

RANK = ({} | os.environ).get("RANK"), (os.environ | {}).get("LOCAL_RANK")
