"""A report's page is one sound HTML file that needs nothing else, and that obeys nothing of what it shows."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorless.reports.format import cell, number, short
from mirrorless.reports.page import LETTER, NARROW, WIDTH, draw_lanes, draw_lines, render, scale
from mirrorless.reports.report import (
    Figure,
    LanePlot,
    Line,
    LinePlot,
    Plot,
    Report,
    ReportSection,
    Segment,
    Table,
)

NASTY = "<script>alert('x')</script> & \"quoted\" \x00\x1b[31m \u202e \x85 \ud800 \uffff ]]> --> ünï"

LINES = LinePlot(
    title="Throughput",
    x_unit="s",
    y_unit="records/s",
    lines=(Line(label="orders", points=((0, 0), (1, 90_000), (2, 149_032.4))),),
)
LANES = LanePlot(
    title="Proved",
    lanes=(("orders-0", (Segment(first=0, next=1_000_000, kind="proved"), Segment(first=7, next=8, kind="missing"))),),
    tones={"proved": "good", "missing": "bad", "expired": "quiet"},
    counts={"proved": 999_998, "missing": 1, "expired": 0},
)


def report(*plots: Plot, text: str = "plain", tables: tuple[Table, ...] = ()) -> Report:
    return Report(
        title=text,
        verdict=text,
        tone="bad",
        figures=(Figure(name=text, value=text, unit=text), Figure(name="records", value=2_000_000)),
        sections=(ReportSection(heading=text, text=(text,), plots=plots, tables=tables),),
        made_at=1_795_297_000_000,
    )


class Reader(HTMLParser):
    """Notes every tag, and that each is closed where it should be."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag is whole."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """A tag ends: the last that began."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 -- ours


def test_a_page_has_its_parts_in_order() -> None:
    table = Table(title="Lanes", columns=("lane", "records"), rows=(("orders-0", 1_000_000),), tones=("bad",))

    tags = [tag for tag, _ in read(render(report(LINES, LANES, tables=(table,)))).tags]

    outline = [tag for tag in tags if tag in {"h1", "dl", "h2", "figure", "svg", "h3", "table"}]
    figure = ["figure", "svg", "table"]
    assert outline == ["h1", "dl", "h2", *figure, *figure, "h3", "table"]


def test_every_drawing_is_sound_and_has_a_description_and_ids_of_its_own() -> None:
    page = render(report(LINES, LANES, LINES))
    found = drawings(page)

    ids = [attributes["id"] for _, attributes in read(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [drawing.findtext("title") for drawing in found] == ["Throughput", "Proved", "Throughput"]
    assert [drawing.findtext("desc") for drawing in found[:2]] == [
        "records/s by s: orders from 0 at 0 to 149,032 at 2, at most 149,032.",
        "Offsets of 1 lanes by kind: proved: 999,998 records, missing: 1 record.",
    ]
    for drawing in found:
        assert drawing.get("role") == "img"
        assert set(str(drawing.get("aria-labelledby")).split()) <= {each.get("id") for each in drawing}


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    """It is opened years later, offline, out of a bucket."""
    page = render(report(LINES, LANES, text="see http://example.com"))
    reader = read(page)

    assert not {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object", "a", "image", "use"}
    assert not {name for _, attributes in reader.tags for name in attributes} & {"src", "href", "xlink:href", "style"}
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_whatever_a_record_or_a_topic_is_called_is_shown_and_not_obeyed() -> None:
    table = Table(title=NASTY, columns=(NASTY,), rows=((NASTY,),), note=NASTY)
    lines = LinePlot(title=NASTY, x_unit=NASTY, y_unit=NASTY, lines=(Line(label=NASTY, points=((1, 1),)),), note=NASTY)
    lanes = LanePlot(title=NASTY, lanes=((NASTY, (Segment(first=0, next=1, kind=NASTY),)),), note=NASTY)

    page = render(report(lines, lanes, text=NASTY, tables=(table,)))

    page.encode()
    assert "script" not in {tag for tag, _ in read(page).tags}
    assert len(drawings(page)) == 2
    assert "\\x00\\x1b[31m" in page
    assert not re.search(r"[\x00\x1b\x80-\x9f\u202e]", page)


@settings(deadline=None)
@given(st.text(), st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none() | st.text())
def test_any_text_and_any_number_makes_a_sound_page(words: str, value: float | str | None) -> None:
    table = Table(title=words, columns=(words,), rows=((value,),))

    read(render(report(text=words, tables=(table,)))).texts.index("2,000,000")


floats = st.floats(min_value=-1e15, max_value=1e15, allow_nan=False)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.tuples(floats, floats), max_size=8), st.booleans(), st.booleans())
def test_any_points_make_a_sound_drawing(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:  # noqa: FBT001 -- drawn
    lines = (Line(label="a", points=tuple(points)), Line(label="none", points=()))
    plot = LinePlot(title="t", x_unit="s", y_unit="n", lines=lines, log_x=log_x, log_y=log_y)

    (drawing,) = drawings(render(report(plot)))

    for each in drawing.iter("polyline"):
        for pair in str(each.get("points")).split():
            x, y = map(float, pair.split(","))
            assert -1 <= x <= 849
            assert -1 <= y <= 400


def test_a_single_missing_record_among_a_million_is_seen() -> None:
    (drawing,) = drawings(render(report(LANES)))

    bad = [each for each in drawing.iter("rect") if each.get("class") == "fill-bad" and each.find("title") is not None]

    assert [each.findtext("title") for each in bad] == ["orders-0 missing: 7 to 7"]
    assert float(str(bad[0].get("width"))) >= 2


def test_a_lane_of_many_pieces_is_drawn_with_no_more_shapes_than_pixels() -> None:
    pieces = tuple(Segment(first=at, next=at + 1, kind=("a", "b")[at % 2]) for at in range(20_000))
    (drawing,) = drawings(render(report(LanePlot(title="t", lanes=(("orders-0", pieces),)))))

    assert len(list(drawing.iter("rect"))) < 2_000


def test_of_very_many_lanes_those_with_something_bad_are_drawn() -> None:
    lanes = tuple(
        (f"orders-{index}", (Segment(first=0, next=9, kind="missing" if index == 150 else "proved"),))
        for index in range(200)
    )
    page = render(report(LanePlot(title="t", lanes=lanes, tones={"missing": "bad"})))

    assert ">orders-150<" in page
    assert "Shown are 100 of 200 lanes" in page


def test_zero_on_a_logarithmic_axis_is_left_out_and_said() -> None:
    lines = (Line(label="a", points=((1, 0), (10, 5))),)
    page = render(report(LinePlot(title="t", x_unit="s", y_unit="n", lines=lines, log_x=True, log_y=True)))

    assert "1 of the points" in page


def test_a_bad_row_is_marked_and_numbers_stand_right_and_rows_are_blocks_on_a_narrow_screen() -> None:
    rows = (("orders-0", 1_000, None), ("orders-1", 2.5, "x"))
    table = Table(title="t", columns=("lane", "n", "note"), rows=rows, tones=("bad",))
    page = render(report(tables=(table, Table(title="Findings", columns=("a",), rows=()))))

    assert '<tr class="bad">' in page
    assert '<td class="number" data-of="n">1,000</td>' in page
    assert '<td class="short" data-of="lane">orders-0</td>' in page
    assert '<th scope="col" class="number">n</th>' in page
    assert "None." in page
    assert "max-height" not in page, "no table is in a box that scrolls down"


def test_lanes_that_need_a_look_are_drawn_first_and_marked() -> None:
    fine = (Segment(first=0, next=9, kind="proved"),)
    wrong = (*fine, Segment(first=9, next=10, kind="missing"))
    lanes = (("orders-0", fine), ("orders-1", wrong), ("orders-2", ()))
    plot = LanePlot(title="t", lanes=lanes, tones={"missing": "bad"}, first=("orders-2",))

    (drawing,) = drawings(render(report(plot)))

    names = [each.text for each in drawing.iter("text") if "orders" in (each.text or "")]
    assert names == ["✗ orders-2", "orders-1", "orders-0"]


def test_an_axis_shows_the_time_that_its_plot_is_about_where_the_points_cover_less() -> None:
    lines = (Line(label="orders", points=((10, 1), (11, 2))),)
    plot = LinePlot(title="t", x_unit="s", y_unit="records/s", lines=lines, x_range=(0, 60))

    (drawing,) = drawings(render(report(plot)))

    ticks = [each.text for each in drawing.iter("text") if each.get("class") == "tick"]
    assert {"0", "60"} <= set(ticks)


def test_a_table_with_a_row_that_does_not_fit_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="2 cells in 1 columns"):
        Table(title="t", columns=("a",), rows=(("x", "y"),))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1_234_567, "1,234,567"),
        (149_032.4, "149,032"),
        (12.345, "12.3"),
        (0.001234, "0.00123"),
        (-3, "\u22123"),
        (2.0, "2"),
        (float("nan"), "\u2013"),
        (None, "\u2013"),
        ("as it is", "as it is"),
    ],
)
def test_numbers_are_written_for_readers(value: Any, written: str) -> None:
    assert cell(value) == written


def test_numbers_at_an_axis_are_short() -> None:
    assert [short(each) for each in (0, 250, 2_500, 250_000, 1_500_000)] == ["0", "250", "2.5k", "250k", "1.5M"]
    assert number(1_500_000) == "1,500,000"


@settings(deadline=None)
@given(st.lists(floats, min_size=1, max_size=5), st.booleans())
def test_an_axis_holds_its_values_and_has_a_few_round_ticks(values: list[float], zero: bool) -> None:  # noqa: FBT001 -- drawn
    axis = scale(values, 0, 100, zero=zero)
    ticks = axis.ticks()

    assert all(axis.low <= value <= axis.high for value in values)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)


def test_entries_of_a_legend_stand_apart_where_a_narrow_screen_has_larger_letters() -> None:
    """On 390 pixels `proved: 20,000 records` and `in doubt: 50 records` were written over each other."""
    plot = LanePlot(
        title="lanes",
        lanes=(("a-0", (Segment(first=0, next=9, kind="proved"), Segment(first=9, next=10, kind="in doubt"))),),
        tones={"proved": "good", "in doubt": "quiet"},
        counts={"proved": 20_000, "in doubt": 50},
    )

    legend = [each for each in draw_lanes(plot).shapes if each.tag == "text" and "records" in each.text]

    first, second = (float(each.attributes["x"]) for each in legend)
    assert second - first > len(legend[0].text) * LETTER * NARROW


def test_the_names_of_lines_end_within_a_narrow_screen_and_do_not_touch_there() -> None:
    """On 390 pixels `heartbeats` ended beyond the screen, and `orders` was written over it."""
    lines = tuple(Line(label=label, points=((0.0, 0.0), (1.0, 0.0))) for label in ("heartbeats", "orders"))

    drawn = draw_lines(LinePlot(title="t", x_unit="s", y_unit="s", lines=lines)).shapes

    first, second = (each for each in drawn if each.attributes.get("class", "").startswith("name-"))
    assert float(first.attributes["x"]) + len("heartbeats") * LETTER * NARROW <= WIDTH
    assert float(second.attributes["y"]) - float(first.attributes["y"]) >= 19
