import tempfile

FOLDER = tempfile.TemporaryDirectory()
