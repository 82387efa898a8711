"""Imports under conditions and in functions happen when they are reached, and no earlier."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import no_such_module_anywhere

print("decimal" in sys.modules, "wave" in sys.modules, "xml" in sys.modules)


def late():
    import wave

    return wave


if sys.argv[1:] == ["never"]:
    import decimal
print(late().__name__, "wave" in sys.modules, "decimal" in sys.modules)
