"""atexit runs after the traceback has been printed; sys.last_value is there by then."""

import atexit
import sys


@atexit.register
def look():
    print(repr(sys.last_value), sys.last_type.__name__, sys.last_traceback.tb_lineno)
    print(getattr(sys, "last_exc", "none before 3.12"), file=sys.stderr)


raise ValueError("uncaught")
