"""The usual last lines."""

import sys


def main():
    print("main", __name__, sys.argv[1:])
    return 3


if __name__ == "__main__":
    sys.exit(main())
