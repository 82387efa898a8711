"""umask, working directory, session, resource limits, scheduling and capabilities."""

import os
import resource

umask = os.umask(0)
os.umask(umask)
print(oct(umask), os.getcwd() == os.environ["PWD"] or os.getcwd())
print(os.getsid(0) == os.getpgid(0) == os.getpid())
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print(error)
for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
    print(name, resource.getrlimit(getattr(resource, name)))
print(
    os.nice(0),
    os.sched_getscheduler(0),
    os.sched_getaffinity(0),
    os.getpriority(os.PRIO_PROCESS, 0),
)
print(os.getuid(), os.geteuid(), os.getgroups(), os.getresgid())
print(open("/proc/self/oom_score_adj").read(), open("/proc/self/coredump_filter").read())
with open("/proc/self/status") as status:
    for line in status:
        if line.startswith(("Cap", "NoNewPrivs", "Seccomp", "THP", "Speculation", "CoreDumping")):
            print(line, end="")
