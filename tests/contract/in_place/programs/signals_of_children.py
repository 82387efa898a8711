"""Children of the script start with default dispositions and an empty mask."""

import subprocess

command = ["grep", "-E", "Sig(Blk|Ign|Cgt|Pnd)|ShdPnd", "/proc/self/status"]
for restored in (True, False):
    done = subprocess.run(command, capture_output=True, text=True, restore_signals=restored)
    masks = [(name, int(mask, 16)) for name, mask in map(str.split, done.stdout.splitlines())]
    # 32 and 33 are the C library's own: its posix_spawn has them ignored until they are needed.
    print([(name, hex(mask & ~(0b11 << 31))) for name, mask in masks])
