"""Text in a file that nobody closed is there after the end."""

import gzip

file = open("unflushed.txt", "w")
file.write("text that nobody flushed")
binary = open("unflushed.bin", "wb")
binary.write(b"bytes that nobody flushed")
print(open("unflushed.txt").read(), len(gzip.__name__))
