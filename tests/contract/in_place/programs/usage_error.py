"""argparse names the program and ends with 2."""

import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lr", type=float, required=True)
print(parser.parse_args())
