from os import environ, getenv

RANK = getenv("RANK"), environ.get("LOCAL_RANK")
