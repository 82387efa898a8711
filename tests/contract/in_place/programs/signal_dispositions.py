"""Each signal's disposition is a fresh interpreter's; only SIGQUIT's is not, as it prints stacks."""

import signal

for number in sorted(signal.valid_signals()):
    if number != signal.SIGQUIT:
        print(int(number), signal.getsignal(number))
with open("/proc/self/status") as status:
    words = [line.split() for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
masks = {name: int(mask, 16) for name, mask in words}
masks["SigCgt:"] &= ~(1 << signal.SIGQUIT - 1)
# 32 and 33 are the C library's own: its posix_spawn has them ignored until they are needed.
masks["SigIgn:"] &= ~(0b11 << 31)
print({name: hex(mask) for name, mask in masks.items()})
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.getitimer(0))
