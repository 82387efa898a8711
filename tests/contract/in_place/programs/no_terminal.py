"""There is no /dev/tty to open, as the job has none."""

import getpass
import os
import shutil

try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print(error)
print(os.getsid(0) == os.getpgid(0) == os.getpid(), shutil.get_terminal_size(), getpass.__name__)
