"""A local module reads the command line while it is imported, as argparse at module level does."""

import options

print(options.PARSED, options.PROGRAM)
