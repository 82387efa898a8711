import mmap

MAP = mmap.mmap(-1, 4096)
