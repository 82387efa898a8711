"""Local modules learn their rank while they are imported, each in another way."""

import by_bytes
import by_c
import by_child
import by_child_with_a_copy
import by_comparison
import by_copy
import by_data
import by_default_argument
import by_dict
import by_expanded_path
import by_fork
import by_get
import by_getenv
import by_imported_name
import by_index
import by_items
import by_keys
import by_length
import by_membership
import by_merge
import by_pop
import by_posix
import by_setdefault
import by_shell
import by_stars
import by_text

modules = [module for name, module in sorted(globals().items()) if name.startswith("by_")]
for module in modules:
    print(f"rank {module.__name__} {module.RANK}")
