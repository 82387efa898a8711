import os

HEARD = []
os.register_at_fork(
    before=lambda: HEARD.append("before"),
    after_in_parent=lambda: HEARD.append("parent"),
    after_in_child=lambda: print("in a child", HEARD, flush=True),
)
