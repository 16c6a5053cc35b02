"""A key is rotated while records come: a consumer with both versions opens all, and the older copies are proved."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest
from msgspec.structs import replace

from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.transforms.ciphers import Sealer, opened, opened_json, pseudonym, sealed_text
from mirrorless.transforms.rules import KeyRing, Mask, Rule
from tests.support.protocol_world import TOPIC, World, records
from tests.support.schedule import Killed

MATERIAL = {version: bytes([version]) * 32 for version in (1, 2)}
RULE = Rule(
    topics=(TOPIC,),
    fields={"mail": Mask(encrypt="pii"), "born": Mask(encrypt="pii")},
    headers={"n": Mask(encrypt="pii")},
    key=Mask(hmac="pii"),
)


def document(offset: int) -> bytes:
    return b'{"id":1e400,"mail":"%d@example.com","born":%d}' % (offset, 1900 + offset)


def under_load() -> World:
    first = {at: [replace(each, value=document(each.offset)) for each in records(*range(120))] for at in (0, 1)}
    return World(first)


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "goes on"])
@pytest.mark.parametrize("step", STEPS)
def test_records_before_during_and_after_a_rotation_are_opened_by_the_version_that_each_names(
    step: Step,
    killed: bool,  # noqa: FBT001
) -> None:
    """What was in flight by the old version is copied by one of the two, each batch whole."""
    there = under_load()
    there.deploy(RULE, key_version=1)
    there.deliver(there.batch(p0=list(range(40)), p1=list(range(30))))
    in_flight = there.batch(p0=list(range(40, 80)), p1=list(range(30, 60)))
    old = there.attempt(in_flight)
    old.until(step)
    there.deploy(RULE, key_version=2)
    if killed:
        old.resume(Killed())
    there.deliver(in_flight)
    old.finish()
    there.deliver()
    there.cluster.time_transactions_out()

    there.assert_invariants()  # every copy is what the rule of its run makes of the source's record, byte for byte
    for partition in (0, 1):
        versions = {}
        for offset, (_, copy) in enumerate(there._visible(partition)):
            value, (header,) = copy.value or b"", [text or b"" for _, text in copy.headers]
            version = version_of(header)
            assert opened_json(value, MATERIAL) == document(offset)
            assert opened(header, MATERIAL) == b"%d" % offset
            ring = KeyRing(version, MATERIAL)
            again = Sealer(ring, TOPIC).seal(b'"%d@example.com"' % offset, partition, offset, "value.mail")
            assert json.loads(value)["mail"] == sealed_text(again), "the same bytes whenever it is sealed again"
            assert copy.key == pseudonym(ring, b"k").encode()
            versions[offset] = version
        began, flew = ((40, 80), (30, 60))[partition]
        assert len(versions) == 120
        assert {versions[at] for at in range(began)} == {1}
        assert len({versions[at] for at in range(began, flew)}) == 1
        assert {versions[at] for at in range(flew, 120)} == {2}
    rules = {run.rule for partition in (0, 1) for run in there.runs(partition)}
    assert len(rules) == 2, "another version of a key is another rule"


def version_of(header: bytes) -> int:
    sealed = urlsafe_b64decode(header.removeprefix(b"mle1:") + b"===")
    return int.from_bytes(sealed[4:8], "big")
