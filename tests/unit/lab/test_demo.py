"""The demonstration ends with the first work that fails: what waits for it would wait for ever, and hide why."""

from __future__ import annotations

from concurrent.futures import Future

from lab.drills.demo import work_is_over


def ended(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_work_goes_on_while_any_of_it_runs_and_none_has_failed() -> None:
    assert not work_is_over([ended(), Future()], seconds=0.0)


def test_work_is_over_when_all_of_it_has_ended() -> None:
    assert work_is_over([ended(), ended()], seconds=0.0)


def test_work_is_over_when_some_of_it_failed_though_the_rest_runs_for_ever() -> None:
    assert work_is_over([Future(), ended(TimeoutError("the source takes no records"))], seconds=0.0)
