FILE = open(__file__, "rb", buffering=0)
