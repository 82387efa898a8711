"""How nodes find each other, and where their workers meet."""
