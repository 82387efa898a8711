"""A local module copies the environment in various ways while it is imported: RANK is in all."""

import keeps_environment

print(keeps_environment.COPY["RANK"], keeps_environment.BYTES[b"RANK"], keeps_environment.BY_C)
print(keeps_environment.BY_CHILD, keeps_environment.KEYS, keeps_environment.MASTER)
