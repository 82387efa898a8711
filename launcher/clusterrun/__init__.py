"""Start one training process per GPU, on one machine or many, and look after all of them.

Importing this package imports nothing else and starts nothing.
"""
