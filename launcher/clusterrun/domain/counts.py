"""Numbers of things in messages."""


def counted(number: int, name: str) -> str:
    """Return "1 GPU", "2 GPUs"; the plural of ``name`` must be regular."""
    return f"{number} {name}{'' if number == 1 else 's'}"
