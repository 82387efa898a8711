"""What every process of the launcher does with its descriptors and its children."""
