"""Local modules may have the names of our own files."""

import channel
import fork_server
import hazards
import leap
import libc
import preparation
import proc
import script
import server
import listener

modules = (
    channel,
    fork_server,
    hazards,
    leap,
    libc,
    preparation,
    proc,
    script,
    server,
    listener,
)
print(*(module.__file__ for module in modules), sep="\n")
print([module.WHO for module in modules])
