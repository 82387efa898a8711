import posix

RANK = posix.environ.get(b"RANK")
