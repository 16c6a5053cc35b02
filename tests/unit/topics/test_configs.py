"""The drift of a remote topic's configs from its source topic's."""

from __future__ import annotations

from mirrorless.ports.topics import ConfigChange, ConfigEntry
from mirrorless.topics.configs import configs_to_copy, drift

NOTHING = ConfigChange()


def own(name: str, value: str | None = "1", **more: bool) -> ConfigEntry:
    """Set on the topic."""
    return ConfigEntry(name=name, value=value, is_override=True, **more)


def default(name: str, value: str = "0") -> ConfigEntry:
    """The cluster's default."""
    return ConfigEntry(name=name, value=value, is_override=False)


def test_topics_that_agree_are_left_alone() -> None:
    assert not drift([own("a"), default("b")], [own("a"), default("b")]).change


def test_what_was_set_on_the_source_topic_is_set_and_corrected() -> None:
    found = drift([own("a", "1"), own("b", "1")], [default("a"), own("b", "2")])

    assert found.change == ConfigChange(set={"a": "1", "b": "1"})


def test_an_override_equal_to_the_targets_default_is_set_all_the_same() -> None:
    """The target's default may change; the source topic's config says what it must be."""
    assert drift([own("a", "7")], [default("a", "7")]).change == ConfigChange(set={"a": "7"})


def test_what_the_source_topic_leaves_at_default_goes_back_to_the_targets_default() -> None:
    assert drift([default("a")], [own("a", "2")]).change == ConfigChange(delete=("a",))


def test_excluded_names_are_never_touched() -> None:
    found = drift([own("a.x", "1"), default("a.y")], [own("a.x", "2"), own("a.y", "2")], exclude=[r"a\..*"])

    assert found.change == NOTHING


def test_protected_names_are_the_operators_on_the_target() -> None:
    found = drift([own("a", "1"), default("b")], [own("a", "2"), own("b", "2")], protect=["[ab]"])

    assert found.change == NOTHING


def test_a_pattern_matches_a_whole_name() -> None:
    assert drift([default("retention.ms")], [own("retention.ms")], protect=["retention"]).change


def test_defaults_of_the_source_are_set_where_the_flow_says_so() -> None:
    found = drift([default("a", "-1"), default("b", "5")], [own("a", "2"), default("b", "5")], defaults_from="source")

    assert found.change == ConfigChange(set={"a": "-1", "b": "5"})


def test_what_cannot_be_read_or_written_is_left_alone() -> None:
    source = [own("secret", None, is_sensitive=True), own("fixed", "1", is_read_only=True)]
    target = [own("secret", None, is_sensitive=True), own("fixed", "2", is_read_only=True), own("secret2", "2")]

    assert drift([*source, own("secret2", None)], target).change == NOTHING


def test_a_config_that_only_the_target_has_is_left_alone() -> None:
    assert drift([], [own("new.in.5.0")]).change == NOTHING


def test_a_config_unknown_to_the_target_is_reported_and_stops_no_other() -> None:
    found = drift([own("a"), own("new.in.5.0")], [default("a")])

    assert (found.change, found.unknown) == (ConfigChange(set={"a": "1"}), ("new.in.5.0",))


def test_a_default_unknown_to_the_target_is_not_reported() -> None:
    assert drift([default("new.in.5.0")], [], defaults_from="source").unknown == ()


def test_a_new_topic_gets_the_sources_defaults_where_the_flow_says_so() -> None:
    entries = [own("a", "1"), default("b", "5"), default("min.insync.replicas")]

    assert configs_to_copy(entries) == {"a": "1"}
    assert configs_to_copy(entries, defaults_from="source") == {"a": "1", "b": "5"}
