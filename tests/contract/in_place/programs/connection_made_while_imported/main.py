"""A connection to a database that a local module opened while it was imported."""

import opens_database

opens_database.CONNECTION.execute("create table lines (text)")
opens_database.CONNECTION.execute("insert into lines values ('one')")
print(opens_database.CONNECTION.execute("select * from lines").fetchall())
