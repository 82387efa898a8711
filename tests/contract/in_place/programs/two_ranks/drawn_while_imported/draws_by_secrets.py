import secrets

DRAWN = secrets.token_hex(4)
