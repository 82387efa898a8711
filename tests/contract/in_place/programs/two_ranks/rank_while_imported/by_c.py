import ctypes

getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
RANK = getenv(b"RANK")
