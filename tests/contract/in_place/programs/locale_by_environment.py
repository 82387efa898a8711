"""LC_ALL and TZ are heard by Python and by C."""

import locale
import sys
import time

print(locale.setlocale(locale.LC_CTYPE), locale.setlocale(locale.LC_NUMERIC), sys.flags.utf8_mode)
print(time.tzname, time.timezone, time.strftime("%Z", time.localtime(0)), sys.stdout.encoding)
