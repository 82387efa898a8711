"""Local modules may have the names of our own files."""

import agent_socket
import fork_server
import hazards
import leap
import libc
import preparation
import proc
import script
import server
import template

modules = (
    agent_socket,
    fork_server,
    hazards,
    leap,
    libc,
    preparation,
    proc,
    script,
    server,
    template,
)
print(*(module.__file__ for module in modules), sep="\n")
print([module.WHO for module in modules])
