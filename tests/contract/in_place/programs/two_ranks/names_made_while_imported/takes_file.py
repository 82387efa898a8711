import tempfile

FILE = tempfile.NamedTemporaryFile()
