"""The table of options, and the conversion of their text to values."""
