"""What does the command answer to words that cannot work? The same words will not work later either."""

from __future__ import annotations

from mirrorless.errors import MirrorlessError


class BadInput(MirrorlessError):
    """The command line asks for something that is not there or makes no sense. Nothing was changed."""
