import datetime

CLOCK = datetime.datetime.now().isoformat()
