import sys

PATH = list(sys.path)
ARGV = sys.argv, sys.orig_argv
