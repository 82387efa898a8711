"""Options: what the workers run."""

from clusterrun.sources.options.old_rows import OLD

MODULE = OLD["module"]
NO_PYTHON = OLD["no_python"]
RUN_PATH = OLD["run_path"]
PASS_LOCAL_RANK = OLD["pass_local_rank"]
ROLE = OLD["role"]
PYTHON = OLD["python"]
ENV = OLD["env"]
