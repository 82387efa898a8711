"""import __main__ gives this very module; importing the file by its name gives a second one."""

import sys

import __main__

VALUE = object()
print(__main__.VALUE is VALUE, __main__ is sys.modules["__main__"])
if __name__ == "__main__":
    import import_main_again

    print(import_main_again.VALUE is VALUE, import_main_again.__name__, import_main_again.__file__)
