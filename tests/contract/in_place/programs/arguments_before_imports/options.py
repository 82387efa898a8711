import argparse
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
PARSED = parser.parse_args()
PROGRAM = parser.prog, sys.argv
