before = sorted(globals())
print(before)
