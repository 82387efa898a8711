"""Context variables and a thread's own that a local module sets while it is imported hold."""

import contextvars

import sets_context

print(sets_context.VARIABLE.get(), len(contextvars.copy_context()), vars(sets_context.LOCAL))
