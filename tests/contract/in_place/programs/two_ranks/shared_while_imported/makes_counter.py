import os

COUNTER = os.eventfd(1, os.EFD_NONBLOCK)
