"""An object that the script hung on an imported module ends with that module."""

import json


class Thing:
    def __del__(self):
        print("del")


json.from_script = Thing()
print(len(vars(json)) > 0)
