"""So is that of a file which only a local module's list holds."""

import io
import os
import tempfile

path = os.path.join(tempfile.gettempdir(), "unflushed-%d" % os.getpid())


class Telling(io.FileIO):
    def write(self, data):
        print("written at the end:", bytes(data))
        return super().write(data)

    def close(self):
        if not self.closed:
            print("closed")
        super().close()


def keep():
    text = io.TextIOWrapper(io.BufferedWriter(Telling(path, "w")))
    text.write("unflushed")
    kept.append(text)


kept = []
keep()
os.unlink(path)
print("main ends")
