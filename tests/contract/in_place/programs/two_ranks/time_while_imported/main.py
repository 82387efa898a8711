"""Local modules keep the time at which they were imported, to name things by it."""

import keeps_clock
import keeps_time

print("time", keeps_time.TIME)
print("clock", keeps_clock.CLOCK)
