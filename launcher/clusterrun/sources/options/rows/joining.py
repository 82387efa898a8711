"""Options: how nodes become one job."""

from clusterrun.sources.options.old_rows import OLD

RDZV_TIMEOUT = OLD["rdzv_timeout"]
LAST_CALL_TIMEOUT = OLD["last_call_timeout"]
TOKEN_FILE = OLD["token_file"]
RUN_ID = OLD["run_id"]
