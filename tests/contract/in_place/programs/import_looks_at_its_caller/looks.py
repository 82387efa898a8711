import sys

frame, CALLERS = sys._getframe(), []
while not CALLERS or CALLERS[-1][3] != "__main__":
    if "importlib" not in frame.f_code.co_filename:
        name = frame.f_globals["__name__"]
        CALLERS.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, name))
    frame = frame.f_back
NAMES = sorted(name for name in vars(sys.modules["__main__"]) if not name.startswith("__"))
