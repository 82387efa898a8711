"""Local modules may have the names of our own files."""

import channel
import failure_notes
import fork_server
import guard
import lease
import messages
import preparation
import script
import server
import worker_start

modules = (channel, failure_notes, fork_server, guard, lease, messages, preparation, script, server)
modules += (worker_start,)
print(*(module.__file__ for module in modules), sep="\n")
print([module.WHO for module in modules])
