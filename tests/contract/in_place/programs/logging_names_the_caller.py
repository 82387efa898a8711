"""Logging finds file, line and function of the caller, process and thread names too."""

import logging

logging.basicConfig(
    format="%(filename)s:%(lineno)d %(funcName)s %(module)s %(processName)s %(threadName)s %(message)s"
)


def function():
    logging.warning("in a function")
    logging.getLogger("other").error("stack level", stacklevel=2)


logging.warning("at module level")
function()
logging.error("with stack", stack_info=True)
print(logging.root.handlers[0].stream.fileno(), logging.getLogger().level)
