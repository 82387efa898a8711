"""Local modules win over installed ones of the same name, the launcher's among them."""

import click
import datasets
import launcher
import msgspec
import psutil

print(*(module.__file__ for module in (click, datasets, launcher, msgspec, psutil)), sep="\n")
print(click.WHO, datasets.WHO, launcher.WHO, msgspec.WHO, psutil.WHO)
