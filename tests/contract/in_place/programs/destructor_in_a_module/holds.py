class Thing:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name)


THING = Thing("of the module")
