"""What importing torch leaves in the process, and what of ours is to be seen beside it."""

import os
import sys
import warnings

import torch

site_packages = os.path.dirname(os.path.dirname(torch.__file__))
standard = os.path.dirname(os.__file__)
files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
print(
    [
        name
        for name, file in files.items()
        if file and not file.startswith((site_packages, standard))
    ]
)
ours = {"clusterrun", "msgspec", "click", "psutil", "ClusterShell", "yaml", "pynvml"}
print([name for name in files if name.partition(".")[0] in ours])
listing = os.open("/proc/self/fd", os.O_RDONLY)
print(sorted(os.listdir(listing), key=int))
print(torch.cuda.is_available(), torch.cuda.is_initialized(), torch.is_grad_enabled())
print(torch.get_default_dtype(), torch.get_num_threads(), torch.get_num_interop_threads())
print(torch.are_deterministic_algorithms_enabled(), torch._C._get_tracing_state())
print(
    len(warnings.filters) > 0,
    sys.getrecursionlimit(),
    sys.gettrace(),
    sys.excepthook is sys.__excepthook__,
)
torch.set_num_interop_threads(3)
torch.set_num_threads(1)
print(torch.get_num_interop_threads(), torch.get_num_threads())
raise ValueError("with torch")
