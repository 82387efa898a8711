"""Imports modules before workers are forked, if that is safe.

preparation.py       the steps, in order
hazards.py           why a process can't be forked, before and after imports
script_walk.py       reads the script: what it imports, and what it does before
module_files.py      finds the files of modules without importing them
packages.py          the lists of verified packages
torch_variables.py   the variables that torch's import reads
dynamo.py            whether torch._dynamo can be imported too
plan.py              what to import
imports.py           imports it, and watches what the imports do
preloaded_torch.py   hides torch until the script imports it, and checks that nothing has changed
reexec_cache.py      caches scripts for which something had changed
"""
