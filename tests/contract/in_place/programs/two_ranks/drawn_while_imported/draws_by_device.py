with open("/dev/urandom", "rb", buffering=0) as device:
    DRAWN = device.read(4).hex()
