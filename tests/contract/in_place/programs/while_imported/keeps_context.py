import contextvars
import threading

VARIABLE = contextvars.ContextVar("variable", default="default")
VARIABLE.set("set while imported")
LOCAL = threading.local()
LOCAL.name = "of the main thread"
