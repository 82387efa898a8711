"""How the script ends is how the process ends. The case is the argument."""

import atexit
import sys

atexit.register(lambda: print(sys.excepthook is sys.__excepthook__))


def leave(how):
    if how == "object":
        raise SystemExit([1, {"a": 2}])
    if how == "tuple":
        raise SystemExit(1, 2)
    if how == "true":
        sys.exit(True)
    if how == "float":
        sys.exit(3.0)
    if how == "huge":
        sys.exit(1 << 70)
    if how == "none":
        sys.exit(None)
    if how == "text":
        sys.exit("a text: € \udc80")
    if how == "bare":
        raise SystemExit
    if how == "quit":
        quit(4)
    if how == "subclass":
        raise type("Leave", (SystemExit,), {})(6)
    if how == "chained":
        try:
            raise ValueError("first")
        except ValueError:
            sys.exit(5)
    if how == "finally":
        try:
            sys.exit(1)
        finally:
            sys.exit(2)
    sys.exit(int(how))


print("begins", flush=True)
leave(sys.argv[1])
