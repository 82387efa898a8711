"""Text in files that the script has hung on modules: a local one, an installed one, sys."""

import json
import sys

import keeps_open

keeps_open.FILE.write("text of the module")
json.file = open("of_json.txt", "w")
json.file.write("text on json")
keeps_open.later = open("later.txt", "w")
keeps_open.later.write("text set later")
sys.file = open("on_sys.txt", "w")
sys.file.write("text on sys")
