"""The process is young: little time used, no children's time, a start a moment ago."""

import os
import resource
import time

used = os.times()
print(used.user + used.system < 0.5, used.children_user, used.children_system)
print(time.process_time() < 0.5, time.thread_time() < 0.5)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
    started = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    print(0 <= float(uptime.read().split()[0]) - started < 2)
