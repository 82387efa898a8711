"""importlib.resources and pkgutil read a local package's data; metadata an installed one's."""

import importlib.metadata
import importlib.resources
import pkgutil

import data

print(
    importlib.resources.files(data).joinpath("text.txt").read_text(),
    pkgutil.get_data("data", "text.txt"),
)
print(
    [module.name for module in pkgutil.iter_modules(data.__path__)],
    data.__spec__.submodule_search_locations,
)
print(importlib.metadata.metadata("pytest")["Name"])
