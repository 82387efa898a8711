"""Python warns when -m runs what is in sys.modules already."""

from .tool import NAME
