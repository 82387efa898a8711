NAME = __name__

if __name__ == "__main__":
    print("run as", NAME, __spec__.name)
