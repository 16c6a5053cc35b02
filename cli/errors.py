"""The error for a command line that cannot work."""

from __future__ import annotations

from mirrorless.errors import MirrorlessError


class BadInput(MirrorlessError):
    """The command line names something that does not exist or makes no sense. Nothing was changed.

    The same words will not work later either.
    """
