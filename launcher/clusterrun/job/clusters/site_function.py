"""A site's own cluster: ``--cluster package.module:function`` (docs/reference/clusters.md)."""

from importlib import import_module

from clusterrun.errors import UsageError, printable
from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.declarations import Setting


def find(asked: Setting[str], variables: Variables, context: DetectionContext) -> Found:
    """Return what the site's function finds.

    Raises:
        UsageError: there is no such function, it fails, or it returns no ``Found``.

    """
    module, _, name = asked.value.partition(":")
    is_given = f"{asked.origin} is {asked.value}"
    try:
        found = getattr(import_module(module), name)(variables, context)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{is_given}: {type(error).__name__}: {printable(str(error))}",
            "its module must be installed beside clusterrun, or in a folder of PYTHONPATH",
        ) from error
    if not isinstance(found, Found):
        raise UsageError(
            f"{is_given}, which finds no job of its cluster on this host",
            f"pass its variables on to this process, or remove {asked.origin}",
        )
    return found
