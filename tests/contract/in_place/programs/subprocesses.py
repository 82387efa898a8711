"""Children by subprocess: output, input, exit codes, groups, pass_fds."""

import os
import signal
import subprocess
import sys

print(subprocess.run(["cat"], input="piped", text=True, capture_output=True).stdout)
print(subprocess.call(["sh", "-c", "exit 5"]), subprocess.getoutput("echo $0; echo err >&2"))
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.killpg(child.pid, signal.SIGTERM)
print(child.wait(), os.getpgid(0) == os.getpid())
read_end, write_end = os.pipe()
subprocess.run(
    [sys.executable, "-c", f"import os; os.write({write_end}, b'x')"], pass_fds=[write_end]
)
print(os.read(read_end, 1))
