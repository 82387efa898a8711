"""Settings of the interpreter that a script may change, before and after."""

import contextvars
import decimal
import locale
import sys
import threading

print(
    sys.getrecursionlimit(),
    sys.getswitchinterval(),
    sys.get_int_max_str_digits(),
    threading.stack_size(),
)
print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding())
print(sys.getfilesystemencodeerrors(), decimal.getcontext(), len(contextvars.copy_context()))
sys.setrecursionlimit(3000)
sys.setswitchinterval(0.01)
sys.set_int_max_str_digits(5000)
variable = contextvars.ContextVar("variable", default=1)
token = variable.set(2)
print(
    sys.getrecursionlimit(),
    sys.getswitchinterval(),
    variable.get(),
    contextvars.copy_context()[variable],
)
variable.reset(token)
print(variable.get(), locale.localeconv()["decimal_point"], sys.hash_info.width, sys.float_info.max)
