"""A local module looks at who imports it: frames and names of the script so far."""

import json

import looks

print(looks.CALLERS, looks.NAMES, json.__name__)
