"""Imports well, then fails."""

import json

VALUE = json.loads("{")
