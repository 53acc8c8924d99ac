"""The methods by which drafters followed the batch before 0.2. They still run, and go with the release after it.

In their place a drafter has ``caches``, whose methods have the same names (models/row_cache.py): ``commit`` and
``keep_path`` became ``truncate``, ``bound`` an argument of ``show``, ``own`` an element of ``caches``, and ``engine``
is ``model``.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int64
from torch import Tensor

from specbench.models import CachedModel, RowCache


class OldHooks:
    """A base of Drafter. Each method forwards to ``own``, as it did; a drafter of that time overrides some of them.

    Attributes:
        own: the model that the drafter alone extends.
        layout: see :class:`specbench.models.RowCache`.
    """

    own: CachedModel | None = None
    model: CachedModel | None = None
    layout: int = 0

    @property
    def engine(self) -> CachedModel | None:
        """The name of ``model`` then."""
        return self.model

    @engine.setter
    def engine(self, model: CachedModel | None) -> None:
        self.model = model

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        if self.own is not None:
            self.own.start(prompts, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        if self.own is not None:
            self.own.reserve(rows, capacity)

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        if self.own is not None:
            self.own.place(prompts, rows)

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        if self.own is not None:
            self.own.feed(pieces, rows, first)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if self.own is not None:
            self.own.move(sources, targets)

    def show(self, rows: int, fixed: bool = False) -> None:
        """The bound on lengths, which came by :meth:`bound`, is the whole capacity until it comes."""
        if self.own is not None:
            self.own.show(rows, None if fixed else self.own.capacity)

    def bound(self, longest: int) -> None:
        if self.own is not None:
            self.own.show(len(self.own.lengths), longest)

    def keep_path(self, root: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"]) -> None:
        if self.own is not None:
            self.own.truncate(root + (path >= 0).sum(dim=1), path)

    def commit(self, agreed: Int64[Tensor, " B"]) -> None:
        if self.own is not None:
            self.own.truncate(agreed)

    def state(self) -> tuple[Tensor, ...]:
        return () if self.own is None else self.own.state


HOOKS = ("start", "reserve", "place", "feed", "move", "show", "bound", "keep_path", "commit", "state")


class HookCache(RowCache):
    """Calls the old hooks of a drafter as the methods of a cache."""

    def __init__(self, drafter: OldHooks):
        self._drafter = drafter

    @property
    def layout(self) -> int:  # ty: ignore[incompatible-property-override]
        """The sum of the drafter's own and that of its model, neither of which ever falls."""
        own = self._drafter.own
        return self._drafter.layout + (0 if own is None else own.layout)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """See :class:`specbench.models.RowCache`, as are the methods below."""
        return self._drafter.state()

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        self._drafter.start(prompts, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        self._drafter.reserve(rows, capacity)

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        self._drafter.place(prompts, rows)

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        self._drafter.feed(pieces, rows, first)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._drafter.move(sources, targets)

    def show(self, rows: int, longest: int | None = None) -> None:
        self._drafter.show(rows, longest is None)
        if longest is not None:
            self._drafter.bound(longest)

    def truncate(self, lengths: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"] | None = None) -> None:
        if path is not None:
            self._drafter.keep_path(lengths - (path >= 0).sum(dim=1), path)
        self._drafter.commit(lengths)


def overrides(drafter: OldHooks, *hooks: str) -> bool:
    """Whether a drafter has a hook of its own among these."""
    return any(getattr(type(drafter), hook) is not getattr(OldHooks, hook) for hook in hooks)


def caches_of(drafter: OldHooks) -> tuple[RowCache, ...]:
    """Returns a cache that calls the drafter's old hooks; none if it has no such hooks."""
    return (HookCache(drafter),) if drafter.own is not None or overrides(drafter, *HOOKS) else ()
