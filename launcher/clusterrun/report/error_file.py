"""The content of TORCHELASTIC_ERROR_FILE, which a worker may have written, as text.

The forms are those of ``torch.distributed.elastic.multiprocessing.errors`` (2.15):
``{"message": {"message": TEXT, "extraInfo": {"py_callstack": TRACEBACK, ...}}}`` by ``@record``,
and the plain ``{"message": TEXT}``.
"""

import json

_LONGEST = 20_000


def decode_error_file(text: str) -> str:
    """Return message and traceback of an error file; a text of unknown form is returned as it is."""
    try:
        known = _message_and_traceback(json.loads(text))
    except (ValueError, RecursionError):
        known = ""
    return (known or text).strip()[-_LONGEST:]


def _message_and_traceback(document: object) -> str:
    entry = _get(document, "message")
    if isinstance(entry, str):
        return entry
    message = _text(_get(entry, "message"))
    traceback = _text(_get(_get(entry, "extraInfo"), "py_callstack"))
    return traceback if message in traceback else f"{message}\n{traceback}"


def _get(document: object, key: str) -> object:
    return document.get(key) if isinstance(document, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
