import logging
import sys

OUT = sys.stdout
logging.basicConfig(
    stream=sys.stderr, format="%(name)s %(process)d %(message)s".replace("%(process)d ", "")
)
log = logging.getLogger("mine")
