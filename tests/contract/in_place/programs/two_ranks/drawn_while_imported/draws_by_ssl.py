import ssl

DRAWN = ssl.RAND_bytes(4).hex()
