"""What is known so far, and who must look again when more is? Until nobody learns anything."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable

from tests.support.points_to.values import Context, Scoped, Value, Values

Cell = tuple[Hashable, Hashable]
"""A variable of a context, a field of an instance, or a place in a container."""


class Solver:
    """Cells that only grow, and contexts that are looked at again when one that they read has grown."""

    def __init__(self, look: Callable[[Context], None], leads: Callable[[Value], bool]) -> None:
        """Args: look: at a context. leads: whether a value is worth remembering."""
        self._look = look
        self._leads = leads
        self._cells: dict[Cell, set[Value]] = defaultdict(set)
        self._readers: dict[Cell, set[Context]] = defaultdict(set)
        self._contexts: dict[Hashable, Context] = {}
        self._waiting: deque[Context] = deque()
        self._queued: set[Context] = set()
        self._current: Context | None = None

    def context(
        self,
        node: Scoped,
        module: str,
        *,
        scope: Context | None = None,
        receiver: Value | None = None,
        given: Hashable = (),
        missing: frozenset[str] = frozenset(),
    ) -> Context:
        """The one context of these; a new one will be looked at."""
        key = (node, module, scope, receiver, given, missing)
        if key not in self._contexts:
            self._contexts[key] = Context(node, module, scope, receiver, missing)
            self._queue(self._contexts[key])
        return self._contexts[key]

    def read(self, owner: Hashable, name: Hashable) -> Values:
        """What a cell may hold; who reads it is told when it grows."""
        if self._current is not None:
            self._readers[owner, name].add(self._current)
        return frozenset(self._cells[owner, name])

    def add(self, owner: Hashable, name: Hashable, values: Iterable[Value], *, whole: bool = False) -> None:
        """Let a cell hold these too, if they lead anywhere, or all of them."""
        cell = self._cells[owner, name]
        before = len(cell)
        cell.update(values if whole else filter(self._leads, values))
        if len(cell) > before:
            for reader in self._readers[owner, name]:
                self._queue(reader)

    def settle(self) -> None:
        """Look until nobody learns anything."""
        while self._waiting:
            self._current = self._waiting.popleft()
            self._queued.discard(self._current)
            self._look(self._current)
        self._current = None

    def _queue(self, context: Context) -> None:
        if context not in self._queued:
            self._queued.add(context)
            self._waiting.append(context)
