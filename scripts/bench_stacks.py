"""Measure five popular stacks of packages: forked, spawned, and under torchrun.

A rank is ready when it has imported the stack and done one all_reduce. When all are ready, their
memory is added up (PSS: a page shared by n processes counts 1/n), and they exit. Processor time is
that of all processes of the job.

    scripts/bench_stacks.py --python ENVIRONMENT/bin/python

with an environment that has torch, transformers, lightning, datasets, pandas and scikit-learn.
"""

import sys

from ready_ranks import MARK_READY, print_table
from side_by_side import parser

STACKS = {
    "torch": "import torch",
    "torch, transformers, lightning": "import torch\nimport transformers\nimport lightning",
    "torch, datasets": "import torch\nimport datasets",
    "torch, pandas, sklearn": "import torch\nimport pandas\nimport sklearn.linear_model",
    "numpy, pandas, torch, sklearn, transformers": (
        "import numpy\nimport pandas\nimport torch\nimport sklearn.linear_model\nimport transformers"
    ),
}

PROGRAM = f"""
import torch.distributed as dist
{MARK_READY}

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
ready()
dist.destroy_process_group()
"""


def main() -> None:
    """Measure, then print a table of medians."""
    arguments = parser("Time and weigh ranks that import real stacks.", nproc=0)
    arguments.add_argument("--python", default=sys.executable, help="has the packages")
    arguments.add_argument("--ranks", default="2,8", help="numbers of ranks")
    options = arguments.parse_args()
    texts = {stack: f"{imports}\n{PROGRAM}" for stack, imports in STACKS.items()}
    print_table("stack", texts, options.python, options.ranks, options.runs)


if __name__ == "__main__":
    main()
