"""Local modules draw random numbers while they are imported: other ones on each rank."""

import draws_by_device
import draws_by_getrandom
import draws_by_os
import draws_by_own_generator
import draws_by_random
import draws_by_secrets
import draws_by_ssl
import draws_by_uuid
import draws_from_a_seed

print("random", draws_by_random.DRAWN)
print("secret", draws_by_secrets.DRAWN)
print("uuid", draws_by_uuid.DRAWN)
print("urandom", draws_by_os.DRAWN)
print("own generator", draws_by_own_generator.GENERATOR.random())
print("seeded", draws_from_a_seed.GENERATOR.random())
print("getrandom", draws_by_getrandom.DRAWN)
print("device", draws_by_device.DRAWN)
print("ssl", draws_by_ssl.DRAWN)
