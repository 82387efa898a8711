"""A reloader executes sys.orig_argv again."""

import os
import sys

print(sys.orig_argv[1:], os.environ.get("RELOADED"), sys.flags.no_user_site)
if "RELOADED" not in os.environ:
    os.environ["RELOADED"] = "1"
    os.execv(sys.executable, sys.orig_argv)
