"""Approximate search for the items with the largest inner products, by a graph of the library faiss."""

from __future__ import annotations

import os
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparkdl.exceptions import ConfigError, DataError, integer_option


class NearestItems:
    """Finds the items whose vectors have the largest inner products with a query's, most of the time.

    Hierarchical navigable small worlds (Malkov and Yashunin, 2018). Use it where items are so many that the
    exact search of :class:`sparkdl.nn.TopK` takes too long, and :meth:`recall` to see what is missed. Needs
    ``pip install 'sparkdl[retrieval]'``.

    Args:
        ids: of the items, 64-bit integers, each once.
        vectors: of the items, shape (items, width).
        links: neighbours of an item in the graph; more find more, and take more memory.
        effort: candidates that a search keeps; more find more, and take more time.

    Raises:
        ConfigError: if faiss is missing, or a number cannot work.
        DataError: if ids or vectors have another shape, or values that are not finite.
    """

    def __init__(self, ids: ArrayLike, vectors: ArrayLike, *, links: int = 32, effort: int = 64) -> None:
        faiss = _faiss()
        integer_option("NearestItems", "links", links, 2)
        integer_option("NearestItems", "effort", effort, 1)
        self.ids = np.asarray(ids)
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        if self.vectors.ndim != 2 or not len(self.vectors) or self.ids.shape != self.vectors.shape[:1]:
            raise DataError(
                f"ids have shape {self.ids.shape} and vectors {self.vectors.shape}; expected (items,) and "
                "(items, width)",
                code="data-shape",
            )
        if self.ids.dtype.kind not in "iu" or len(np.unique(self.ids)) < len(self.ids):
            raise DataError("ids: expected different integers", code="data-value")
        if self.ids.dtype.kind == "u" and self.ids.max() >> 63:  # as int64 it would be another id
            raise DataError(f"ids: {self.ids.max()} is beyond 64-bit integers with a sign", code="data-value")
        if not np.isfinite(self.vectors).all():
            raise DataError("vectors: some values are NaN or infinite", code="data-value")
        self.ids = self.ids.astype(np.int64)
        self._index = faiss.IndexHNSWFlat(self.vectors.shape[1], links, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = max(200, effort)
        self._index.hnsw.efSearch = effort
        self._index.add(self.vectors)

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self.ids)

    def search(self, queries: ArrayLike, k: int = 10) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids of ``k`` items for each query, the best first, and their inner products.

        Args:
            queries: shape (queries, width).
            k: how many; at most as many as there are items.

        Returns:
            Ids and scores, shape (queries, k). Where the graph leads to fewer than ``k`` items, the last ids
            are -1 and their scores minus infinity.

        Raises:
            ConfigError: if ``k`` cannot work.
            DataError: if queries have another shape, or values or inner products that are not finite.
        """
        found = self._checked(queries, k)
        scores, places = self._index.search(found, k)
        there = places >= 0
        _check_finite("inner products of the query", np.isfinite(scores) | ~there)
        return np.where(there, self.ids[places], -1), np.where(there, scores, -np.inf).astype(np.float32)

    def recall(self, queries: ArrayLike, k: int = 10) -> float:
        """Return which share of the ``k`` best items a search finds, by comparing with all items.

        Args:
            queries: shape (queries, width).
            k: how many.

        Raises:
            ConfigError: as of :meth:`search`.
            DataError: likewise.
        """
        found = self._checked(queries, k)
        hits = 0
        for start in range(0, len(found), 256):
            block = found[start : start + 256]
            exact = np.argpartition(-(block @ self.vectors.T), k - 1, axis=1)[:, :k]
            near = self.search(block, k)[0]
            hits += sum(len(np.intersect1d(self.ids[a], b)) for a, b in zip(exact, near, strict=True))
        return hits / (len(found) * k) if len(found) else 1.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ids and vectors to a file, ``.npz``; :meth:`load` builds the graph again."""
        with open(path, "wb") as file:
            np.savez(file, ids=self.ids, vectors=self.vectors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> NearestItems:
        """Read what :meth:`save` wrote; nothing is unpickled.

        Args:
            path: the file.
            **options: ``links`` and ``effort``.

        Raises:
            DataError: if the file holds something else.
        """
        try:
            found = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, BadZipFile) as error:
            raise DataError(f"{path}: not a file of save(): {error}", code="data-value") from error
        if isinstance(found, np.ndarray):
            raise DataError(f"{path} holds one array, expected ids and vectors", code="data-value")
        with found:
            if set(found.files) != {"ids", "vectors"}:
                raise DataError(f"{path} holds {found.files}, expected ids and vectors", code="data-value")
            return cls(found["ids"], found["vectors"], **options)

    def _checked(self, queries: ArrayLike, k: int) -> NDArray[np.float32]:
        integer_option("search", "k", k, 1)
        if k > len(self):
            raise ConfigError(f"search: k={k}: there are {len(self)} items")
        with np.errstate(over="ignore"):  # infinities are refused below
            found = np.ascontiguousarray(queries, np.float32)
        if found.ndim != 2 or found.shape[1] != self.vectors.shape[1]:
            raise DataError(
                f"queries have shape {found.shape}, expected (queries, {self.vectors.shape[1]})",
                code="data-shape",
            )
        _check_finite("values of the query", np.isfinite(found))
        return found


def _check_finite(what: str, finite: NDArray[np.bool_]) -> None:
    wrong = np.flatnonzero(~finite.all(1))
    if len(wrong):
        raise DataError(
            f"queries: {what} in row {wrong[0]} ({len(wrong)} such rows) are NaN, infinite or beyond "
            "float32; leave such rows out",
            code="data-value",
        )


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "NearestItems needs faiss: pip install 'sparkdl[retrieval]'", code="config-package"
        ) from error
    return faiss
