"""Patches of the interpreter itself, made while a local module is imported, hold in the script."""

import patches_all

print(from_patches, patches_all.LIMIT)
print("printed by the module's stdout")
raise ValueError("for the hook")
