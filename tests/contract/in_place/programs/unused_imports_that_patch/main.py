"""A local module replaces functions of another while it is imported."""

import json

import patches

print(json.dumps({}), patches.BEFORE)
