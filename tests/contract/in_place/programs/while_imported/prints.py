import sys

print("noisy on stdout")
print("noisy on stderr", file=sys.stderr)
VALUE = 3
