import os

HEARD = []


def hear(where):
    # Those that were forked before the script began are not its own.
    if os.environ.get("RANK"):
        HEARD.append(where)


os.register_at_fork(before=lambda: hear("before"), after_in_parent=lambda: hear("parent"))
