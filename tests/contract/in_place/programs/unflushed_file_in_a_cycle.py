"""Text in a file that only a cycle of objects holds, as a logger and its handler do."""

import logging


class Writer:
    def __init__(self):
        self.file = open("in_a_cycle.txt", "w")
        self.write = self.write_line

    def write_line(self, text):
        self.file.write(text)


logger = logging.getLogger("mine")
logger.addHandler(logging.StreamHandler(open("by_a_handler.txt", "w")))
logger.warning("text by a handler")
writer = Writer()
writer.write("text in a cycle")
for number in range(3):
    vars()[f"file{number}"] = open(f"file{number}.txt", "w")
    vars()[f"file{number}"].write(f"text {number}")
