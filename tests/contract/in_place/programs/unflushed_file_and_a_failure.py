"""And where the script fails with the file's text in a frame of the traceback."""


def write():
    file = open("in_a_frame.txt", "w")
    file.write("text in a frame")
    raise ValueError("with an open file")


write()
