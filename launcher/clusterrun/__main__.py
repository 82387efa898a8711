"""``python -m clusterrun`` is ``clusterrun``."""

import sys

from clusterrun.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
