"""A local module sets logging up while it is imported; its handler writes where stderr is now."""

import log_setup

log_setup.log.warning("from the script")
print(log_setup.OUT.fileno(), file=log_setup.OUT)
