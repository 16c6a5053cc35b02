"""The page that takes an operator to a deployment names every service that a deployment touches."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.assembly import EXAMPLES, REPOSITORY, Assembly


def test_every_service_that_the_templates_use_stands_in_the_deployers_table(
    assembled: Callable[[str], Assembly],
) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
    listed = set(re.findall(r"^\| `(AWS::\w+::)` \|", page, re.MULTILINE))

    used = {re.sub(r"\w+$", "", r.type) for example in EXAMPLES for r in assembled(example).resources()}

    assert {service for service in used if service.startswith("AWS::")} <= listed


def test_every_example_stands_in_the_list_of_examples() -> None:
    page = (REPOSITORY / "docs" / "examples" / "README.md").read_text()

    assert set(re.findall(r"^\| \[[^]]*\]\(([\w./-]+\.yaml)\)", page, re.MULTILINE)) == {
        path.relative_to(REPOSITORY / "docs" / "examples").as_posix()
        if path.parent.name == "examples"
        else f"../../{path.name}"
        for path in EXAMPLES.values()
    }
