"""What small modules do while they are imported: state that they keep, set or register for later."""

import asyncio
import atexit
import contextvars
import locale
import os
import socket
import sys
import warnings

import draws_from_a_seed
import keeps_context
import keeps_environment
import makes_executor
import opens_database
import prints
import registers_at_exit
import sets_state
import sets_up_logging
import watches_forks

pid = os.fork()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1], watches_forks.HEARD)
print("prints", prints.VALUE)
print(draws_from_a_seed.GENERATOR.random())
print(keeps_context.VARIABLE.get(), vars(keeps_context.LOCAL), len(contextvars.copy_context()))
print(keeps_environment.HOME == os.environ["HOME"], keeps_environment.MASTER)
print(makes_executor.EXECUTOR.submit(abs, -3).result())
opens_database.CONNECTION.execute("create table lines (text)")
opens_database.CONNECTION.execute("insert into lines values ('one')")
print(opens_database.CONNECTION.execute("select * from lines").fetchall())
print(sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout())
print(os.environ["SET_WHILE_IMPORTED"], os.environ.get("TERM"), sys.path[-1], sys.dont_write_bytecode)
print(locale.setlocale(locale.LC_NUMERIC), warnings.filters[0], asyncio.get_event_loop_policy() is sets_state.POLICY)
sets_up_logging.log.warning("from the script")
print(sets_up_logging.OUT.fileno(), file=sets_up_logging.OUT)
atexit.register(print, "script's", registers_at_exit.VALUE)
