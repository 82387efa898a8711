"""inspect and linecache find the source of what is defined here."""

import inspect
import linecache
import sys


class Network:
    """A class."""

    def forward(self):
        return 1


def function():
    """A function."""
    return lambda x: x + 1


print(inspect.getsource(Network), inspect.getsource(function), inspect.getsource(function()))
print(inspect.getfile(Network), inspect.getmodule(function), inspect.getsourcefile(function))
print(inspect.getsourcelines(Network)[1], linecache.getline(__file__, 1))
print(
    len(inspect.getsource(sys.modules["__main__"])),
    Network.__module__,
    function.__globals__ is globals(),
)
