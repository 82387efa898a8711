"""Options for torchrun's command lines."""

from clusterrun.sources.options.old_rows import OLD

STANDALONE = OLD["standalone"]
RDZV_BACKEND = OLD["rdzv_backend"]
RDZV_CONF = OLD["rdzv_conf"]
SIGNALS_TO_HANDLE = OLD["signals_to_handle"]
USE_ENV = OLD["use_env"]
MONITOR_INTERVAL = OLD["monitor_interval"]
EVENT_LOG_HANDLER = OLD["event_log_handler"]
LOGS_SPECS = OLD["logs_specs"]
