FILE = open(__file__)
