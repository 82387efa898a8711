import os
from dataclasses import dataclass
from os import environ, getenv


def rank(value=getenv("RANK")):
    return value


@dataclass
class Config:
    local_rank: int = int(environ.get("LOCAL_RANK", -1))
    world_size: int = int(os.getenv("WORLD_SIZE", "-1"))


HAS = "RANK" in environ, environ.keys() >= {"RANK"}, len([n for n in environ if n == "RANK"])
