"""What a topic's rule makes of its records, by code of its own: plain `json` and `hmac`, and nothing of the product.

Both sides are brought to one form, and compared in it as copies without a rule are:

    source   a record that the rule leaves out is none; what it drops or cuts is gone or cut; what becomes a pseudonym,
             or is sealed, is a token with its text
    target   pseudonyms and what is sealed are the same tokens: the former are looked up among those of all that the
             source had, the latter is opened; so each version of a key holds, and raw text in their place does not

JSON is expected without spaces, as the workload writes it: all that the rule leaves alone is compared byte for byte.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

RecordParts = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value and headers."""
Keeps = Callable[[Any, Mapping[str, str]], bool]
"""What `keep` says of a decoded value and of headers."""

_STEP = re.compile(r'"([^"]*)"|(\[\*\])|([^.\[\]"]+)')
_MASKED = rb"mle1:[\w-]+|[\w-]{43}"
_IN_JSON = re.compile(rb'"(%b)"' % _MASKED)
_MAGIC, _VERSION, _NONCE, _REST = slice(0, 4), slice(4, 8), slice(8, 20), slice(20, None)
"""Of what is sealed; magic and version are authentic with the rest."""


class _Literal(str):
    """JSON text: a number as it was written, or a token."""

    __slots__ = ()


class Unfit(ValueError):
    """A rule cannot be applied to a record."""


class ExpectedCopies:
    """The records of one topic; those of the source come first."""

    def __init__(self, rule: Mapping[str, Any], keeps: Keeps, keys: Mapping[str, Mapping[int, bytes]]) -> None:
        """Say what is expected.

        Args:
            rule: an entry of `transforms`, as replication.yaml has it.
            keeps: the same as its `keep`.
            keys: 32 bytes by version, by the key's name.
        """
        self._rule, self._keeps, self._keys = rule, keeps, keys
        self._tokens: dict[bytes, bytes] = {}
        """By pseudonym."""
        self._fields = _tree(rule.get("fields", {}))

    def of_source(self, record: RecordParts) -> RecordParts | None:
        """The form of a record of the source; None where it has no copy.

        Raises:
            ValueError: the rule cannot be applied to it, which would stop its lane.
        """
        try:
            return self._copy(record)
        except ValueError:
            if self._rule.get("on.error") != "drop":
                raise
            return None

    def of_target(self, record: RecordParts) -> RecordParts:
        """The form of a record of the target."""
        key, value, headers = record
        if value is not None and self._fields:
            value = _IN_JSON.sub(lambda found: self._token(found[1]) or found[0], value)
        return self._opened(key), self._opened(value), [(name, self._opened(each)) for name, each in headers]

    def _copy(self, record: RecordParts) -> RecordParts | None:
        (key, value, headers), rule, decoded = record, self._rule, None
        if value is not None and rule.get("format", "json") == "json" and ("keep" in rule or self._fields):
            decoded = json.loads(value)
        asked = value is not None or rule.get("tombstones") == "filter"
        if asked and not self._keeps(decoded, {name: each.decode() for name, each in headers if each is not None}):
            return None
        if value is not None and self._fields:
            text = json.loads(value, object_pairs_hook=tuple, parse_int=_Literal, parse_float=_Literal)
            value = _json(self._walked(text, self._fields)).encode()
        else:
            value = self._alone(rule.get("value", "pass"), value)
        by_name = rule.get("headers", {})
        acts = [(name, by_name.get(name, by_name.get("*", "pass")), each) for name, each in headers]
        left = [(name, self._alone(action, each)) for name, action, each in acts if action != "drop"]
        return self._alone(rule.get("key", "pass"), key), value, left

    def _walked(self, value: Any, node: Any) -> Any:
        if isinstance(node, tuple):
            (action,) = node
            return value if action == "pass" or value is None else self._masked(action, value)
        if value is None:
            return None
        if "[*]" in node:
            if not isinstance(value, list):
                raise Unfit("no array")
            return [self._walked(each, node["[*]"]) for each in value if node["[*]"] != ("drop",)]
        if not isinstance(value, tuple):
            raise Unfit("no object")
        ways = [(name, node.get(name, node.get("*", ("pass",))), each) for name, each in dict(value).items()]
        return tuple((name, self._walked(each, way)) for name, way, each in ways if way != ("drop",))

    def _masked(self, action: Mapping[str, Any], value: Any) -> Any:
        ((kind, how),) = action.items()
        text = value if isinstance(value, str) else _json(value)
        if kind == "hmac":
            return _Literal(self._pseudonym(how, text.encode()).decode())
        if kind == "encrypt":
            return _Literal(_sealed(_json(value).encode()).decode())
        if kind == "set":
            return json.loads(json.dumps(how), object_pairs_hook=tuple)
        if not isinstance(value, str) or (kind == "truncate" and isinstance(value, _Literal)):
            raise Unfit("no text")
        return _cut(kind, how, text)

    def _alone(self, action: Any, raw: bytes | None) -> bytes | None:
        """A whole key, value or header."""
        if raw is None or action == "pass":
            return raw
        if action == "drop":
            return None
        ((kind, how),) = action.items()
        if kind == "hmac":
            return self._pseudonym(how, raw)
        return _sealed(raw) if kind == "encrypt" else _cut(kind, how, raw.decode()).encode()

    def _pseudonym(self, name: str, raw: bytes) -> bytes:
        token = b"<hmac %b>" % raw
        for material in self._keys[name].values():
            digest = hmac.digest(hmac.digest(material, b"mirrorless hmac", "sha256"), raw, "sha256")
            self._tokens[base64.urlsafe_b64encode(digest).rstrip(b"=")] = token
        return token

    def _opened(self, masked: bytes | None) -> bytes | None:
        return masked and (self._token(masked) or masked)

    def _token(self, masked: bytes) -> bytes | None:
        """None of what is neither a pseudonym nor sealed by one of the keys."""
        if masked.startswith(b"mle1:"):
            text = masked.removeprefix(b"mle1:")
            masked = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
        if masked[_MAGIC] != b"MLE1":
            return self._tokens.get(masked)
        version = int.from_bytes(masked[_VERSION], "big")
        for material in (by_version[version] for by_version in self._keys.values() if version in by_version):
            cipher = AESGCMSIV(hmac.digest(material, b"mirrorless encrypt", "sha256"))
            try:
                return _sealed(cipher.decrypt(masked[_NONCE], masked[_REST], masked[:8]))
            except InvalidTag:
                continue  # another key may have this version, too
        return None


def _tree(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Actions as leaves, tuples, by the names of members, `*` and `[*]`."""
    root: dict[str, Any] = {}
    for path, action in fields.items():
        *way, last = ["".join(names) for names in _STEP.findall(path)]
        node = root
        for step in way:
            node = node.setdefault(step, {})
        node[last] = (action,)
    return dict(_covered(root, None))


def _covered(node: Any, others: tuple[Any] | None) -> Any:
    """With what holds for all others, in what has a name too, where that does not say it itself."""
    if isinstance(node, tuple):
        return node
    each = "[*]" if "[*]" in node else "*"
    of_each = node.get(each, others)
    below = of_each if isinstance(of_each, tuple) else None
    named = {name: _covered(found, others if name == each else below) for name, found in node.items()}
    return named if below is None else {each: below} | named


def _sealed(plain: bytes) -> bytes:
    return b"<sealed %b>" % plain


def _cut(kind: str, count: int, text: str) -> str:
    if kind == "truncate":
        return text[:count]
    if len(text) <= count:
        return "*" * len(text)
    stars = "*" * (len(text) - count)
    return text[:count] + stars if kind == "keep.first" else stars + text[len(text) - count :]


def _json(value: Any) -> str:
    """As compact text; objects are tuples of pairs."""
    if isinstance(value, _Literal):
        return str(value)
    if isinstance(value, tuple):
        return "{" + ",".join(f"{_json(name)}:{_json(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
