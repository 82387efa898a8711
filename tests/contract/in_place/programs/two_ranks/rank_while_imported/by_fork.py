import os

read_end, write_end = os.pipe()
if os.fork() == 0:
    os.write(write_end, os.environ.get("RANK", "none").encode())
    os._exit(0)
os.wait()
RANK = os.read(read_end, 10)
os.close(read_end)
os.close(write_end)
