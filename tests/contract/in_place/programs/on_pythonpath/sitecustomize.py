"""The user's own sitecustomize runs in each worker."""

import sys

sys.from_sitecustomize = "heard"
