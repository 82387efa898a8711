print(*sorted(__import__("sys").modules), sep="\n")
