import os

READ_END, WRITE_END = os.pipe()
