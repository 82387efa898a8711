"""Options: how a job is watched, and how its ranks are debugged and profiled."""

from clusterrun.sources.options.old_rows import OLD

DEBUG = OLD["debug"]
PDB = OLD["pdb"]
PROFILE = OLD["profile"]
