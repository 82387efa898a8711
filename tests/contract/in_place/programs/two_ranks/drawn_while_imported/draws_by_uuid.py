import uuid

DRAWN = uuid.uuid4()
