# What type checkers know of the C module beneath signal, which the fork server uses.
from signal import *  # noqa: F403
