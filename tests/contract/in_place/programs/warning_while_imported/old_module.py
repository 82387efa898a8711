import warnings

warnings.warn("old_module is old", FutureWarning, stacklevel=2)
VALUE = 5
