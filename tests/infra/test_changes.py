"""The matrix of changes: what the guard says of each, and the page that says so."""

from __future__ import annotations

from typing import Any

import pytest

from docs import write_changes_page
from docs.write_changes_page import Change, Comparison
from mirrorless.config.cluster import ClusterSection
from mirrorless.config.flow_section import FlowSection, FunctionSection, MappingSection, ScheduleSection
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.config.schema import DeploymentSection

Row = tuple[Change, Comparison | InvalidConfiguration]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(write_changes_page.compared())


def test_the_guard_says_of_each_change_what_the_table_does(rows: list[Row]) -> None:
    said = {
        change.title: "invalid" if isinstance(found, InvalidConfiguration) else found.guard for change, found in rows
    }

    assert len(said) == len(rows) > 40
    assert said == {change.title: change.guard for change, _ in rows}


def test_no_deployment_goes_on_without_a_refusal_where_a_place_of_its_accounts_leads_to_it(rows: list[Row]) -> None:
    """The flow would be replicated twice. Only another account of every cluster hides it."""
    beside = {change.title for change, found in rows if isinstance(found, Comparison) and "go on" in found.stacks()}
    quiet = {change.title for change, found in rows if change.title in beside and change.guard != "refused"}

    assert beside == {"another `deployment.name`", "other regions of both ends", "another `account` of both ends"}
    assert quiet == {"another `account` of both ends"}


def test_no_table_is_left_or_made_anew_without_a_refusal(rows: list[Row]) -> None:
    without = {
        change.title
        for change, found in rows
        if isinstance(found, Comparison) and "stay behind" in found.tables() and change.guard != "refused"
    }

    assert without == {"another `account` of both ends"}


def test_the_page_is_what_the_guard_says(rows: list[Row]) -> None:
    assert write_changes_page.PAGE.read_text(encoding="utf-8") == write_changes_page.page(rows), "run `make docs`"


def test_every_key_of_a_cluster_a_flow_and_a_deployment_stands_in_some_change() -> None:
    """What a new key does to stacks, tables and positions is to be known before somebody changes it."""
    written = {key for change in write_changes_page.changes() for key in keys(change.before) | keys(change.after)}

    assert len(KEYS) > 80
    assert KEYS - written == set()


def keys(document: Any) -> set[str]:
    if not isinstance(document, dict):
        return set()
    return {*document}.union(*map(keys, document.values()))


KEYS = {
    field.alias or name
    for section in (ClusterSection, FlowSection, MappingSection, FunctionSection, ScheduleSection, DeploymentSection)
    for name, field in section.model_fields.items()
}
