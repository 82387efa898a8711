"""What the script sets or deletes is what a child gets, by any way of starting it."""

import os
import subprocess
import sys

os.environ["NEW"] = "new"
os.putenv("PUT", "put")
del os.environ["LOCAL_RANK"]
look = "import os; print({n: os.environ.get(n) for n in ('RANK', 'LOCAL_RANK', 'NEW', 'PUT', 'PYTHONPATH')})"
subprocess.run([sys.executable, "-c", look])
os.system("echo $RANK-$LOCAL_RANK-$NEW-$PUT-$PYTHONPATH")
os.waitpid(os.posix_spawn(sys.executable, ["python", "-c", look], os.environ), 0)
if os.fork() == 0:
    os.execlp(sys.executable, "python", "-c", look)
os.wait()
