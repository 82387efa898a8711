"""``--devices``: which GPUs the workers see, and in which order, by CUDA_VISIBLE_DEVICES."""

from collections.abc import Mapping, Sequence

from launcher.domain.facts import Fact
from launcher.errors import UsageError
from launcher.sources.host_options import DEVICES
from launcher.sources.said import Said, find

VISIBLE = "CUDA_VISIBLE_DEVICES"


def with_devices(
    env: Mapping[str, Fact[str]], sources: Sequence[Said], inherited: Mapping[str, str]
) -> dict[str, Fact[str]]:
    """Return the job's ``env`` with the devices that are chosen, if any are.

    They narrow what was visible before, and go by the same names: of 4,5,6,7 one may choose 6,4.

    Raises:
        UsageError: the job's own variables choose others, or one is not visible.

    """
    chosen = find(DEVICES, sources)
    if chosen is None:
        return dict(env)
    if VISIBLE in env:
        raise UsageError(
            f"{chosen.origin} and {VISIBLE}={env[VISIBLE].value} ({env[VISIBLE].origin}) both"
            " choose the GPUs",
            "leave one of them out",
        )
    before = inherited.get(VISIBLE)
    hidden = [] if before is None else [it for it in chosen.value if it not in before.split(",")]
    if hidden:
        raise UsageError(
            f"{chosen.origin}: {', '.join(hidden)} is not in {VISIBLE}={before}",
            f"choose from these, or unset {VISIBLE}",
        )
    return {**env, VISIBLE: Fact(",".join(chosen.value), chosen.origin)}
