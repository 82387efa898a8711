"""A local module warns while it is imported: the line names the importer, once."""

import old_module

print(old_module.VALUE)
