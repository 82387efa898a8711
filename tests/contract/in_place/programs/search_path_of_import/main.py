"""sys.path as it is while a local module is imported."""

import path_seen

print(path_seen.PATH)
print(path_seen.ARGV)
