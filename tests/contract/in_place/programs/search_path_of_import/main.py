"""sys.path as it is while a local module is imported; changed by the script, it decides what is next."""

import sys

import path_seen

print(path_seen.PATH)
print(path_seen.ARGV)
print([path for path in sys.path_importer_cache if "clusterrun" in path])

sys.path.insert(0, "search_path_of_import/first")

import which
import json

print(which.WHO, getattr(json, "WHO", None))
