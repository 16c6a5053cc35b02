"""The rules of a flow's `transforms`: one entry for some topics, as replication.yaml has it.

What an entry does is in `mirrorless.transforms.transform`. Whoever applies an entry names it by its id: a hash of all
that decides about the copy's bytes. So runs that were copied by other rules, or by another version of a key, are told
apart whatever number an operator wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

ID_BYTES: Final = 8


class Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What becomes of a value that is not null; one field is set, or both `keep.first` and `keep.last`."""

    hmac: str = ""
    """By this key: equal values become equal pseudonyms."""
    encrypt: str = ""
    """By this key: whoever has it reads the value again."""
    set: Any = msgspec.UNSET
    """Any JSON, null too."""
    keep_first: int | None = msgspec.field(default=None, name="keep.first")
    """So many characters stay, and each other one becomes `*`; all do where none would."""
    keep_last: int | None = msgspec.field(default=None, name="keep.last")
    truncate: int | None = None
    """So many characters stay, and the others go."""


Action = Literal["drop", "pass"] | Mask
"""`drop`: it is not in the copy. `pass`: it stays, where a wildcard beside it would mask it."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of `transforms`. The first entry whose `topics` match a source topic holds for it."""

    topics: tuple[str, ...]
    version: int = 1
    """The operator's own number, for reports."""
    keep: str = ""
    """JMESPath over `key`, `value`, `headers`, `partition`, `timestamp`: a record for which it is false is left out."""
    tombstones: Literal["pass", "filter"] = "pass"
    """Whether `keep` decides about records without a value."""
    format: Literal["json", "avro", "bytes"] = "json"
    """Of values, where `keep` or `fields` look into them."""
    fields: dict[str, Action] = {}
    """By path: names with dots between, `[*]` for all elements, `*` for all members, quotes around odd names. A name
    goes before a wildcard beside it, which still holds for what the name's paths leave open."""
    value: Action | None = None
    """Of the whole value, with `format: bytes`."""
    headers: dict[str, Action] = {}
    """By name; `*` for all that are not named."""
    key: Action | None = None
    """Of the record's key: `drop` or `hmac`."""
    function: str = ""
    """`package.module:function` of one's own, `(record) -> record | None`, after all of the above."""
    on_error: Literal["stop", "drop"] = msgspec.field(default="stop", name="on.error")
    """A record that the rules cannot be applied to stops its lane, or is left out and listed as a loss."""

    @property
    def keys(self) -> frozenset[str]:
        """The names of the keys that it uses."""
        actions = (*self.fields.values(), *self.headers.values(), self.key, self.value)
        return frozenset(
            name for each in actions if isinstance(each, Mask) for name in (each.hmac, each.encrypt) if name
        )


class KeySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a key is, and which version of it is in use: its material is never in a configuration."""

    version: int = 1
    secret: str = ""
    """Name or ARN in Secrets Manager; its JSON has 32 bytes in base64 by version: `{"1": "…", "2": "…"}`."""
    kms_key_arn: str = msgspec.field(default="", name="kms.key.arn")
    """Instead: a key of KMS, which opens `data.keys`."""
    data_keys: dict[str, str] = msgspec.field(default_factory=dict, name="data.keys")
    """By version: 32 bytes as KMS encrypted them, in base64."""


class KeyRing(msgspec.Struct, frozen=True):
    """The material of a key."""

    version: int
    """In use."""
    material: dict[int, bytes]
    """32 bytes by version: at least of that in use."""

    def of(self, version: int) -> KeyRing:
        """The same with another version in use."""
        return KeyRing(version, self.material)


class RuleInForce(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that decides about the bytes of a copy, as the flow's documents keep it, by id: without secrets."""

    rule: Rule
    key_versions: dict[str, int] = {}
    function_hash: str = ""
    """SHA-256 of the source of one's own function's module, in hex."""

    @classmethod
    def of(cls, rule: Rule, keys: Mapping[str, KeySettings], function_hash: str = "") -> RuleInForce:
        """A rule with the versions of its keys. Raises KeyError: it names a key that there is not."""
        return cls(rule, {name: keys[name].version for name in sorted(rule.keys)}, function_hash)

    @property
    def id(self) -> bytes:
        """8 bytes. Neither the version nor the topics count: they decide nothing about a record's bytes."""
        plain = msgspec.structs.replace(self, rule=msgspec.structs.replace(self.rule, topics=(), version=1))
        return sha256(_canonical.encode(plain)).digest()[:ID_BYTES]


_canonical = msgspec.json.Encoder(order="sorted")
