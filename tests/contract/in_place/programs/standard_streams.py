"""Encoding, buffering and errors of the three streams, and how they are layered."""

import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines)
    print(
        stream.fileno(), stream.isatty(), stream.line_buffering, stream.write_through, stream.closed
    )
    print(type(stream), type(stream.buffer), type(getattr(stream.buffer, "raw", stream.buffer)))
    print(stream.buffer.name, stream.buffer.mode, stream.buffer.fileno(), repr(stream))
