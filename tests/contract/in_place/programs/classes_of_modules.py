"""Classes of imported modules are the same in all that use them: except and isinstance work."""

import collections.abc
import json
import os
import pathlib
import queue
import subprocess
import _queue

try:
    json.loads("{")
except ValueError as error:
    print(type(error) is json.JSONDecodeError, type(error) is json.decoder.JSONDecodeError)
try:
    subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    print(error)
try:
    queue.Queue().get_nowait()
except _queue.Empty as error:
    print(repr(error))
print(
    isinstance(os.environ, collections.abc.MutableMapping),
    isinstance(pathlib.Path("/"), os.PathLike),
)
