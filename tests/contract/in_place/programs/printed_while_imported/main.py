"""What a local module prints while it is imported comes out once, before the script's own."""

import noisy

print("script", noisy.VALUE)
