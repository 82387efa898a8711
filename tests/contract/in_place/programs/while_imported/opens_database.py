import sqlite3

CONNECTION = sqlite3.connect(":memory:")
