"""The commands' output: moments, durations, tables, and what names from elsewhere do to a terminal."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import msgspec
import pytest
from rich.table import Table
from rich.text import Text

from cli.deployment import Stores
from cli.jobs.local import LocalRuns
from cli.jobs.runs import RunView
from cli.output import (
    NAME_WIDTH,
    ago,
    console,
    duration,
    moment,
    print_json,
    progress_line,
    say,
    say_error,
    say_traceback,
    table,
    write,
)
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.losses import Loss
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.records.record import Record
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.acls import Acl
from tests.frozen.small_flow import FLOW
from tests.support.commands import Answer


def test_a_moment_is_in_utc_or_an_age() -> None:
    now = 1_763_700_000_000

    assert moment(now) == "2025-11-21 04:40:00Z"
    ages = [ago(now - ms, now=now) for ms in (-9, 1_500, 119_000, 120_000, 7_200_000, 200_000_000)]
    assert ages == ["0 s ago", "1 s ago", "119 s ago", "2 min ago", "2 h ago", "2 d ago"]


def test_a_duration_takes_six_characters_at_most() -> None:
    spans = (0, 1, 340, 9_949, 42_000, 119_999, 120_000, 7_200_000, 200_000_000)

    shown = ["0 s", "0.0 s", "0.3 s", "9.9 s", "42 s", "120 s", "2 min", "2 h", "2 d"]
    assert [duration(ms) for ms in spans] == shown


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)


def of(headings: str, *rows: tuple[object, ...]) -> Table:
    """A table of tuples. Args: headings: with a comma between."""
    return table(None, [(each, itemgetter(number)) for number, each in enumerate(headings.split(","))], rows)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
@pytest.mark.parametrize("name", ["x" * 249, "orders." * 35, "日本" * 100])
def test_a_long_name_is_folded_and_leaves_the_other_columns_their_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, name: str
) -> None:
    terminal(monkeypatch, width)

    console(soft_wrap=False).print(
        of("=topic,>lanes,>lag,mapping", ("short", 1, None, "Enabled"), (name, 6, 1_234, "Disabled"))
    )

    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[0].split() == ["topic", "lanes", "lag", "mapping"]
    assert lines[2].split() == ["short", "1", "-", "Enabled"]
    assert lines[3].split()[1:] == ["6", "1,234", "Disabled"]
    assert "".join(line.split()[0] for line in lines[3:] if line.split()) == name


NASTY = "owned\t\x1b]0;title\x07\x1b[2J\x9b31m\x00\x7f\u202e\u2066\u200b\r\nDone: nothing is left."
"""A name that sets the title of a terminal, clears it, turns its line around, and writes a line of its own."""
SHOWN = "owned\\t\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\x00\\x7f\\u202e\\u2066\\u200b\\r\\nDone: nothing is left."
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066]|^Done: nothing", re.MULTILINE)


def test_what_a_name_has_for_the_terminal_is_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console(300).print(of("group", (NASTY,), ("s[red] :smile: \u200d ünï",)))
    console(300).print(Text(NASTY.replace("\n", "")))
    say(NASTY, f"{NASTY}\ud800")
    say_error(Retriable(NASTY, where=NASTY), NASTY)
    say_traceback(ValueError, ValueError(NASTY), None)
    progress_line(NASTY)
    terminal(monkeypatch, 300)
    write(NASTY.encode() + b"\xff")

    shown = "".join(capsys.readouterr())
    own_line_ends = shown.replace("\r\x1b[K", "").replace("\nDone: nothing is left.", "", 2)  # of a value, a traceback
    assert OBEYED.search(own_line_ends) is None, ascii(shown)
    assert shown.count(SHOWN) == 7
    assert "s[red] :smile: \u200d ünï" in shown


def test_json_has_a_name_as_it_is_and_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({NASTY: NASTY}, indent=None)

    shown = capsys.readouterr().out
    assert shown.isascii()
    assert OBEYED.search(shown) is None
    assert json.loads(shown) == {NASTY: NASTY}


FROM_ELSEWHERE = (
    "status",
    "status '{flow}' --lanes",
    "status --html page.html",
    "groups '{flow}'",
    "groups '{flow}' --group '{nasty}'",
    "lanes stopped",
    "lanes show '{flow}' orders 0 7",
    "losses",
    "topics '{flow}'",
    "topics 'silent->eu-west'",
    "acl plan '{flow}'",
    "transform test '{flow}' orders",
    "verify list --local --folder jobs",
    "verify follow verify-1 --local --folder jobs",
)
"""Commands that show names, errors and records from elsewhere."""


@pytest.mark.parametrize("words", FROM_ELSEWHERE)
def test_no_command_passes_on_what_a_terminal_obeys(
    words: str, stores: Stores, in_lab: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may name a group, set a header or an ACL, or make a broker say something, is not the operator."""
    plant(stores, monkeypatch)

    answer = in_lab(*(word.format(flow=FLOW, nasty=NASTY) for word in shlex.split(words)))

    shown = "".join([answer.out, answer.err, *(each.read_text() for each in Path().glob("*.html"))])
    assert "owned" in shown
    assert not re.search(r"--(?:group|move-back) (?!'|&#39;)", shown), "a command that is copied would be several"
    assert OBEYED.search(shown) is None, ascii(shown)


def plant(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the name wherever others than the operator choose it."""
    lane = Lane(FLOW, "orders", 0)
    stores.states.stop(lane, Stop(reason="refused", upstream_offset=10, detail=NASTY, at=1))
    stores.ledger.note(Loss(lane=lane, generation=0, first=7, next=8, cause="retention", detail=NASTY, at=1))
    offsets = {"orders": {0: GroupOffset(8, 106, "exact", NASTY)}}
    group = GroupCheckpoints(
        group=NASTY,
        direction="forward",
        at=1,
        readiness="ahead_on_target",
        offsets=offsets,
        skip=9,
        own={"orders": {0: (106,)}},
    )
    stores.checkpoints.write(FLOW, {group.key: msgspec.json.encode(group)})
    task = TaskReport(task="topics", at=2, ms=1, ok_at=1, error=NASTY, troubles=(NASTY,))
    stores.documents.write(FLOW, {"task/topics": msgspec.json.encode(task)})
    acls = frozenset({Acl("TOPIC", "LITERAL", "orders", f"User:{NASTY}", "*", "ALLOW", "READ")})
    monkeypatch.setattr(KafkaAcls, "read", lambda *_: acls)
    there = {NASTY: {("us-east.orders", 0): OffsetAndMetadata(offset=106, metadata=NASTY)}}
    monkeypatch.setattr(KafkaGroups, "committed", lambda *_: there)
    monkeypatch.setattr(KafkaGroups, "names", lambda *_: [NASTY, f"console {NASTY}"])
    record = Record(7, 1, [(NASTY, NASTY.encode())], NASTY.encode(), json.dumps({NASTY: NASTY}).encode())
    monkeypatch.setattr(KafkaOffsets, "record_from", lambda *_: record)
    monkeypatch.setattr(KafkaOffsets, "sample", lambda *_, **__: [(3, record)])
    config = Path("replication.yaml")
    rules = "[{topics: [orders], fields: {a: drop}}]"
    config.write_text(
        config.read_text().replace("  us-east->eu-west:\n", f"  us-east->eu-west:\n    transforms: {rules}\n")
    )
    view = RunView(
        run_id="verify-20261121T203355-1f3a", kind="verify", flow=NASTY, state="failed", place=NASTY, error=NASTY
    )
    monkeypatch.setattr(LocalRuns, "every", lambda *_: [view])
    monkeypatch.setattr(LocalRuns, "inspect", lambda *_: view)
    partitions = KafkaOffsets.partitions

    def refuse(offsets: KafkaOffsets) -> dict[str, int]:
        if offsets._cluster.alias == "silent":
            raise Retriable(NASTY, where=NASTY)
        return partitions(offsets)

    monkeypatch.setattr(KafkaOffsets, "partitions", refuse)


def test_a_name_that_fits_is_not_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch, 70)

    console(soft_wrap=False).print(of("=topic,why", ("x" * NAME_WIDTH, "a sentence that is too long for one line")))

    assert "x" * NAME_WIDTH in capsys.readouterr().out


def test_a_table_wider_than_the_terminal_loses_no_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns, `topics` showed `p…` for partitions and for its number."""
    terminal(monkeypatch, 40)

    console().print(of("topic,remote topic,>partitions", ("orders-of-the-day", "us-east.orders-of-the-day", 1_234)))

    assert "…" not in (shown := capsys.readouterr().out)
    assert "1,234" in shown
