import tempfile

FOLDER = tempfile.mkdtemp()
