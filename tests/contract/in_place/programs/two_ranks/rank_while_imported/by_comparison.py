import os

RANK = os.environ == {"RANK": "0"}, [rank for rank in "01" if ("RANK", rank) in os.environ.items()]
