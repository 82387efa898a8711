"""Local modules open files while they are imported: each rank reads them from the beginning."""

import os

import opens_descriptor
import opens_text
import opens_unbuffered

for number in range(3):
    print("line", number, opens_text.FILE.readline().strip())
print("unbuffered", opens_unbuffered.FILE.read(4), opens_unbuffered.FILE.tell())
print("descriptor", os.lseek(opens_descriptor.DESCRIPTOR, 10, os.SEEK_CUR))
