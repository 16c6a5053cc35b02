"""Copies that a rule has changed: each run is proved by its own rule, and what a rule masks is looked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.records.record import Record
from mirrorless.transforms.json_fields import DEEPEST
from mirrorless.transforms.transform import TopicTransform
from mirrorless.verify.findings import KINDS, LaneVerdict
from mirrorless.verify.summary import is_clean
from tests.support.chains import LANE
from tests.support.verified_lane import OneSchema, VerifiedLane, ruled

KEEP = "headers.region != 'internal'"
FIELDS = {"email": {"hmac": "pii"}, "card": {"keep.last": 4}, "secret": "drop"}


def rule(*, material: bytes = b"m", version: int = 1, **entry: Any) -> TopicTransform:
    """See `ruled`."""
    return ruled(material=material, version=version, **({"keep": KEEP, "fields": FIELDS} | entry))


def customer(number: int, *, region: str = "eu", **more: Any) -> Record:
    """A record of JSON that is like no other; every second one is internal."""
    value = {"id": number, "email": f"Ann{number}@example.org", "card": "4111222233334444", "secret": number + 10_000}
    return Record(
        offset=-1,
        timestamp=1_000 + number,
        headers=[("region", region.encode())],
        key=b"k%d" % number,
        value=msgspec.json.encode(value | more),
    )


def customers(first: int = 0, count: int = 6) -> list[Record]:
    return [customer(each, region="internal" if each % 3 == 1 else "eu") for each in range(first, first + count)]


def found(verdict: LaneVerdict) -> dict[str, int]:
    return {kind: getattr(verdict.counts, kind) for kind in KINDS if getattr(verdict.counts, kind)}


def faults(verdict: LaneVerdict) -> list[tuple[str, int | None, str]]:
    """Kind, upstream offset and words of each finding."""
    return [(each.kind, each.upstream.first if each.upstream else None, each.what) for each in verdict.findings]


def only_first(lane: VerifiedLane) -> Run:
    return next(each for each in lane.chains.of(LANE) if isinstance(each, Run))


def a_lane(by: TopicTransform | None = None, **how: Any) -> VerifiedLane:
    """Upstream 0 to 5, of which 1 and 4 are filtered; downstream 0 to 3."""
    lane = VerifiedLane()
    lane.replicate(lane.write(*customers()), rule=rule(), by=by, **how)
    return lane


def test_a_copy_by_a_rule_is_proved_on_both_sides_and_what_it_leaves_out_is_no_finding() -> None:
    lane = a_lane()
    lane.replicate(lane.write(*(customer(each, region="internal") for each in range(6, 9))), rule=rule())
    lane.replicate(lane.write(changed(customer(9), value=None)), rule=rule())

    verdict = lane.verify(against_source=True)

    assert (faults(verdict), verdict.notes) == ([], [])
    assert (verdict.counts.proved, verdict.counts.compared, verdict.counts.known_losses) == (5, 5, 0)
    (use,) = verdict.rules.values()
    assert (use.runs, use.copied, use.filtered, use.searched, use.showing) == (3, 5, 5, 5, 0)


DIFFERS = "value not as its rule makes it"
OTHER_FIELDS = {**FIELDS, "email": "pass"}
Tampering = Callable[[], VerifiedLane]


def unmasked() -> VerifiedLane:
    lane = a_lane()
    raw = lane.source.records[2]
    lane.change(1, changed(raw, value=raw.value))
    return lane


def wrongly_hashed() -> VerifiedLane:
    return a_lane(by=rule(material=b"x"))


TAMPERED: dict[str, tuple[Tampering, bool, list[tuple[str, int, str]]]] = {
    "an unmasked value is put on the target": (
        unmasked,
        False,
        [("different", 2, DIFFERS)],
    ),
    "values are hashed by another key": (wrongly_hashed, True, [("different", each, DIFFERS) for each in (0, 2, 5)]),
    "values are not masked by the forwarder": (
        lambda: a_lane(by=rule(fields=OTHER_FIELDS)),
        True,
        [("different", each, DIFFERS) for each in (0, 2, 5)],
    ),
    "a record is filtered that the rule keeps": (
        lambda: a_lane(by=rule(keep=f"{KEEP} && key != 'k3'")),
        True,
        [("missing", 3, "its rule keeps it, and it was filtered")],
    ),
    "the first record of a lane is filtered that the rule keeps": (
        lambda: a_lane(by=rule(keep=f"{KEEP} && key != 'k0'")),
        True,
        [("missing", 0, "its rule keeps it, and it was filtered")],
    ),
    "a record is copied that the rule leaves out": (
        lambda: a_lane(by=rule(keep=f"{KEEP} || key == 'k4'")),
        True,
        [("different", 4, "its rule leaves it out, and the target has it")],
    ),
}


@pytest.mark.parametrize("compacts", [False, True], ids=["", "compacted source"])
@pytest.mark.parametrize("case", TAMPERED)
def test_what_is_not_as_the_rule_makes_it_is_found_at_its_place(case: str, *, compacts: bool) -> None:
    tampering, needs_source, expected = TAMPERED[case]
    lane = tampering()

    verdict = lane.verify(against_source=True, source_compacts=compacts)

    assert faults(verdict) == expected
    assert next(iter(verdict.rules.values())).searched == 4 - (expected[0][0] == "missing")
    assert not is_clean([verdict])
    assert is_clean([lane.verify()]) == needs_source


def test_a_copy_of_nothing_but_a_time_is_told_from_none() -> None:
    """A tombstone whose key is dropped: the rule leaves it out, and the target has it."""
    lane = VerifiedLane()
    written = lane.write(Record(offset=-1, timestamp=1, headers=[]))
    lane.replicate(written, rule=rule(key="drop", keep="value", tombstones="filter"), by=rule(key="drop"))

    assert found(lane.verify(against_source=True)) == {"different": 1}


def test_no_word_about_a_copy_by_a_rule_tells_of_a_value() -> None:
    """Neither what stood there, nor how long it was, nor how far it is as the mask."""
    lane = a_lane(by=rule(fields=OTHER_FIELDS))
    lane.change(1, changed(lane.source.records[2], key=b"other", headers=[]))

    words = {what for *_, what in faults(lane.verify())}

    assert words == {DIFFERS, "key and value and headers not as its rule makes it"}


def test_faults_of_one_run_on_both_sides_of_the_chain_are_each_found_once() -> None:
    """Its digest does not hold on the target, so the source is asked at once, and nothing is called foreign."""
    lane = a_lane(by=rule(keep=f"{KEEP} || key == 'k4'"))
    lane.change(0, changed(lane.target.records[0], value=b"{}"))

    for against_source in (False, True):
        verdict = lane.verify(against_source=against_source)

        assert faults(verdict) == [
            ("different", 0, DIFFERS),
            ("different", 4, "its rule leaves it out, and the target has it"),
        ]
        assert (verdict.counts.foreign, verdict.counts.proved) == (0, 3)


BROKEN = "its rule cannot be applied to it: value.email has an object, where the rule is for a string"


def a_record_that_no_rule_fits() -> tuple[VerifiedLane, Run]:
    """Upstream 1 has no text where the rule wants one."""
    lane = VerifiedLane()
    written = lane.write(customer(0), customer(1, email={"at": "home"}), customer(2))
    run = lane.replicate(written, rule=rule(fields={"email": {"truncate": 9}}))
    return lane, run


@pytest.mark.parametrize("explained", ["by order", "in the ledger", "as filtered", "by nothing", "copied"])
def test_a_record_that_the_rule_cannot_be_applied_to_is_in_the_ledger_or_a_finding(explained: str) -> None:
    lane, run = a_record_that_no_rule_fits()
    assert run.quarantined == (1,)
    if explained == "copied":
        lane = VerifiedLane()
        lenient = rule(fields={"card": "drop"})
        lane.replicate(lane.write(customer(0), customer(1, email={"at": "home"})), rule=lenient)
        lane.rules[lenient.id] = rule(fields={"email": {"truncate": 9}})
    elif explained != "by order":
        filtered = ((1, 2),) if explained == "as filtered" else ()
        lane.chains.replace_link(run, replace(run, quarantined=(), filtered=filtered))
    if explained == "in the ledger":
        lane.ledger.note(Loss(lane=LANE, generation=0, first=1, next=2, cause="quarantined", detail="", at=0))

    verdict = lane.verify(against_source=True)

    expected = {
        "as filtered": [("missing", 1, f"{BROKEN}, and it was filtered")],
        "by nothing": [("missing", 1, "the source has it, no run covers it, and it is not in the loss ledger")],
        "copied": [("different", 0, DIFFERS), ("different", 1, f"{BROKEN}, and the target has it")],
    }
    assert faults(verdict) == expected.get(explained, [])
    assert verdict.counts.known_losses == (explained in {"by order", "in the ledger"})
    assert sum(use.searched for use in verdict.rules.values()) == (1 if explained == "copied" else 2)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_run_whose_rule_is_gone_is_proved_by_its_digest_and_not_compared(*, wrong: bool) -> None:
    lane = a_lane()
    lane.replicate(lane.write(*customers(6)), rule=rule(version=2))
    del lane.rules[only_first(lane).rule]
    if wrong:
        lane.change(2, changed(lane.target.records[2], value=b"{}"))

    verdict = lane.verify(against_source=True)

    counts, note = verdict.counts, f"runs of rule {only_first(lane).rule.hex()} cannot be compared with the source"
    assert (counts.proved, counts.compared, counts.rule_gone) == (4 if wrong else 8, 4, 4)
    assert (found(verdict), counts.not_provable) == (({"different": 1}, 3) if wrong else ({}, 0))
    assert verdict.notes == [f"{note}: its document is gone (a retry does not help)."]


def test_a_rule_that_changed_proves_each_run_by_its_own_and_names_both() -> None:
    lane, before, after = a_lane(), rule(), rule(version=2, keep="", fields={**FIELDS, "id": "drop"})
    lane.replicate(lane.write(*customers(6)), rule=after)
    lane.replicate(lane.write(*customers(12, 3)))
    lane.replicate(lane.write(*customers(15, 3)), rule=before)

    verdict = lane.verify(against_source=True)

    assert (faults(verdict), verdict.counts.compared) == ([], 4 + 6 + 3 + 2)
    seen = {each: (use.first, use.next, use.runs, use.copied, use.filtered) for each, use in verdict.rules.items()}
    assert seen == {
        before.id.hex(): (0, 21, 2, 6, 3),
        after.id.hex(): (6, 13, 1, 6, 0),
        "": (13, 17, 1, 3, 0),
    }


SHOWN: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    # parts of the record, of the rule, and whether a copy shows what is masked
    "an e-mail in a free text": ({"note": "write to ANN7@example.org"}, {}, True),
    "in a field of its own": ({"login": "Ann7@example.org"}, {"fields": {"email": "drop"}}, True),
    "escaped": ({"name": 'M\u00fcller "M"', "note": 'for M\u00fcller "M"'}, {"fields": {"name": "drop"}}, True),
    "a number in a text": ({"note": "no. 10007"}, {}, True),
    "a part of a dropped object": (
        {"at": {"zip": ["10115"]}, "note": "10115 Berlin"},
        {"fields": {"at": "drop"}},
        True,
    ),
    "by a wildcard": ({"note": "of 10007"}, {"fields": {"*": "drop", "note": "pass"}}, True),
    "in an array": ({"items": [{"a": "left"}, {"a": "more"}], "b": "more"}, {"fields": {"items[1].a": "drop"}}, True),
    "of an element that passes": ({"items": ["left", "right"], "b": "left"}, {"fields": {"items[1]": "drop"}}, False),
    "the key in the value": ({"note": "key-7"}, {"key": {"hmac": "pii"}}, True),
    "the key, dropped": ({}, {"key": "drop"}, False),
    "a header in the value": ({"note": "eu-1"}, {"headers": {"region": "drop"}}, True),
    "a header by a wildcard": ({"note": "eu-1"}, {"headers": {"*": {"truncate": 2}}}, True),
    "a header that passes": ({"note": "eu-1"}, {"headers": {"*": "drop", "region": "pass"}}, False),
    "too short to search for": ({"initials": "AB", "note": "AB"}, {"fields": {"initials": "drop"}}, False),
    "true, false and null": ({"a": True, "b": None, "c": "true null"}, {"fields": {"a": "drop", "b": "drop"}}, False),
    "short enough to stay": ({"name": "Anne", "note": "Anne"}, {"fields": {"name": {"truncate": 4}}}, False),
    "cut, and whole elsewhere": ({"name": "Annette", "note": "Annette"}, {"fields": {"name": {"truncate": 4}}}, True),
    "already what it is set to": ({"name": "none", "note": "none"}, {"fields": {"name": {"set": "none"}}}, False),
    "the last digits, which stay": ({"note": "card 4444"}, {}, False),
}


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("case", SHOWN)
def test_a_copy_that_shows_what_its_rule_masks_is_a_warning_with_its_place(case: str, *, ascii_only: bool) -> None:
    parts, entry, shows = SHOWN[case]
    record = customer(7, region="eu-1", **parts)
    record.key = b"key-7"
    if ascii_only:
        record.value = json.dumps(msgspec.json.decode(record.value or b"")).encode()
    lane = VerifiedLane()
    lane.replicate(lane.write(customer(6), record), rule=rule(**({"keep": ""} | entry)))

    verdict = lane.verify(against_source=True)

    (use,) = verdict.rules.values()
    assert (use.searched, use.shown_at) == (2, [1] if shows else [])
    assert (is_clean([verdict]), verdict.counts.compared) == (True, 2)


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (b"%b", {"format": "bytes", "value": {"encrypt": "pii"}}),
        (b'{"secret": "%b"}', {"fields": {"secret": "drop"}}),
    ],
)
def test_bytes_that_are_no_text_are_searched_for_too(text: bytes, entry: dict[str, Any], *, shows: bool) -> None:
    lane, content = VerifiedLane(), b"\xffwhole\xfe"
    record = Record(offset=-1, timestamp=1, headers=[("h", content if shows else None)], value=text % content)
    lane.replicate(lane.write(record), rule=ruled(**entry))

    (use,) = lane.verify(against_source=True).rules.values()

    assert (use.searched, use.showing) == (1, shows)


@pytest.mark.parametrize(
    ("contents", "searched", "shown"),
    [
        ((b"Anne Mayer", b"\xc3\xe4\xfc\xf6", 10_007, b"", b"of ANNE mayer"), 1, [0]),
        ((b"Anne Mayer", b"\xc3\xe4\xfc\xf6", 10_007, b"\xc3\xe4\xfc\xf6", b""), 1, [0]),
        ((b"Anne Mayer", b"\xc3\xe4\xfc\xf6", 10_007, b"", b"no. 10007"), 1, [0]),
        ((b"Anne Mayer", b"\xc3\xe4\xfc\xf6", 10_007, b"\xc3\xe4", b"of nobody"), 1, []),
        ((b"Anne Mayer", b"", 10_007, b"", b"no \xff text"), 0, []),
    ],
)
def test_values_of_avro_are_searched_for_by_the_writers_schema(
    contents: tuple[bytes | int, ...], searched: int, shown: list[int]
) -> None:
    lane, schemas = (
        VerifiedLane(),
        OneSchema(("name", "seal", "number", "raw", "note"), {"seal": "bytes", "number": "long", "raw": "bytes"}),
    )
    record = Record(offset=-1, timestamp=1, headers=[], value=schemas.written(*contents))
    fields = {"name": {"hmac": "pii"}, "seal": {"encrypt": "pii"}, "number": {"set": 0}}
    lane.replicate(lane.write(record), rule=ruled(schemas=schemas, format="avro", keep="value.name", fields=fields))

    verdict = lane.verify(against_source=True)

    (use,) = verdict.rules.values()
    assert (use.copied, use.searched, use.shown_at, verdict.counts.compared) == (1, searched, shown, 1)


def test_a_value_as_deep_as_a_rule_takes_it_is_searched() -> None:
    lane, depth = VerifiedLane(), DEEPEST - 1
    deep = b'{"secret": %b1%b}' % (b"[" * depth, b"]" * depth)
    lane.replicate(lane.write(changed(customer(0), value=deep), customer(1)), rule=rule())

    (use,) = lane.verify(against_source=True).rules.values()

    assert (use.copied, use.searched) == (2, 2)


def test_places_of_shown_values_are_counted_in_all_and_named_up_to_ten_in_every_part() -> None:
    lane = VerifiedLane()
    for first in range(0, 30, 5):
        some = (customer(each, note=f"ann{each}@example.org") for each in range(first, first + 5))
        lane.replicate(lane.write(*some), rule=rule())

    for verdict in (lane.verify(against_source=True), lane.verify_in_parts(lambda: False, against_source=True)[0]):
        (use,) = verdict.rules.values()
        assert (use.runs, use.searched, use.showing) == (6, 30, 30)
        assert use.shown_at == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_without_the_source_pass_nothing_is_searched_and_a_lane_without_rules_names_none() -> None:
    plain = VerifiedLane.copied()

    (use,) = a_lane().verify().rules.values()

    assert (use.searched, use.copied, plain.verify(against_source=True).rules) == (0, 4, {})
