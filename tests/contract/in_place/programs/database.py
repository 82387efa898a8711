"""sqlite3, in memory and in a file, from two threads."""

import sqlite3
import threading

connection = sqlite3.connect("left.db", check_same_thread=False)
connection.execute("create table lines (text)")
thread = threading.Thread(target=connection.execute, args=("insert into lines values ('one')",))
thread.start()
thread.join()
connection.commit()
print(connection.execute("select * from lines").fetchall())
connection.execute("insert into lines values ('never committed')")
