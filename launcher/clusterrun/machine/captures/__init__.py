"""Machines captured elsewhere: recorded, packed and read again."""
