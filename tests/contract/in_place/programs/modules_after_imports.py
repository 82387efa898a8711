"""sys.modules after the leading imports: what they bring, and no name more or less."""

import argparse
import os
import sys

print(*sorted(sys.modules), sep="\n")
print(len(os.sep), argparse.__name__)
