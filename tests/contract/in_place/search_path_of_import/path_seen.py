import sys

PATH = list(sys.path)
CACHED = sorted(sys.path_importer_cache)
ARGV = sys.argv, sys.orig_argv
