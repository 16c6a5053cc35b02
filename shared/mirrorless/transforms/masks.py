"""What a mask makes of a text or of bytes, whatever they stand in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.transforms.ciphers import Sealer, pseudonym, sealed_text
from mirrorless.transforms.rules import Action, KeyRing, Mask

KeyedText = Callable[[bytes, int, int, str], str]
"""Of plain bytes, their partition, their offset and their path: an ASCII text."""

BytesChange = Callable[[bytes | None, int, int, str], bytes | None]
"""The same of bytes that may be null."""


class TransformFailed(Exception):
    """A rule cannot be applied to a record. The words have a path and what stands there by kind, never a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysInUse:
    """The keys of a rule, by name, for one source topic."""

    rings: Mapping[str, KeyRing]
    topic: str

    def text_of(self, mask: Mask) -> KeyedText:
        """What `hmac` or `encrypt` makes of bytes."""
        if mask.hmac:
            ring = self.rings[mask.hmac]
            return lambda plain, _partition, _offset, _path: pseudonym(ring, plain)
        seal = self.seal_of(mask)
        return lambda plain, partition, offset, path: sealed_text(seal(plain, partition, offset, path))

    def seal_of(self, mask: Mask) -> Callable[[bytes, int, int, str], bytes]:
        """The same of `encrypt`, as bytes."""
        return Sealer(self.rings[mask.encrypt], self.topic).seal


def kind_of(action: Action, where: str) -> str:
    """Its name: `drop`, `pass`, `hmac`, `encrypt`, `set`, `keep`, `truncate`.

    Raises:
        ConfigurationError: it is several, or none, or it has a negative number.
    """
    if not isinstance(action, Mask):
        return action
    numbers = [number for number in (action.keep_first, action.keep_last, action.truncate) if number is not None]
    given = {
        "hmac": bool(action.hmac),
        "encrypt": bool(action.encrypt),
        "set": action.set is not msgspec.UNSET,
        "keep": action.keep_first is not None or action.keep_last is not None,
        "truncate": action.truncate is not None,
    }
    if sum(given.values()) != 1 or min(numbers, default=0) < 0:
        raise ConfigurationError(
            f"an action that is {', '.join(name for name, there in given.items() if there) or 'none'}",
            where=where,
            hint="give one of hmac, encrypt, set, truncate or keep.first and keep.last; numbers begin at 0",
        )
    return next(name for name, there in given.items() if there)


def text_change(mask: Mask) -> Callable[[str], str]:
    """What `keep.first`, `keep.last` or `truncate` make of a text. Where `keep` would hide nothing, it hides all."""
    if mask.truncate is not None:
        return lambda text: text[: mask.truncate]
    first, last = mask.keep_first or 0, mask.keep_last or 0

    def masked(text: str) -> str:
        hidden = len(text) - first - last
        return f"{text[:first]}{'*' * hidden}{text[first + hidden :]}" if hidden > 0 else "*" * len(text)

    return masked


def bytes_change(mask: Mask, path: str, keys: KeysInUse) -> BytesChange:
    """What a mask makes of bytes, which errors name by a path. Null stays null."""
    if mask.set is not msgspec.UNSET:
        content = mask.set if isinstance(mask.set, str | None) else msgspec.json.encode(mask.set).decode()
        fixed = None if content is None else content.encode()
        return lambda plain, _partition, _offset, _path: None if plain is None else fixed
    if mask.hmac or mask.encrypt:
        text_of = keys.text_of(mask)
        return lambda plain, *place: None if plain is None else text_of(plain, *place).encode()
    change = text_change(mask)

    def changed(plain: bytes | None, _partition: int, _offset: int, _path: str) -> bytes | None:
        if plain is None:
            return None
        try:
            return change(plain.decode()).encode()
        except UnicodeDecodeError:
            raise TransformFailed(f"{path} has bytes that are no UTF-8, where a text is to be cut") from None

    return changed
