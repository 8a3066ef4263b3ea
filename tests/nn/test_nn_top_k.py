"""The best items: exact search by blocks, ranked again, saved and served."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.ml import TorchModel
from sparkdl.ml.persistence.local import save_local
from sparkdl.nn import DIN, Recommender, TopK, TwoTower
from sparkdl.recsys import NearestItems
from sparkdl.serve.served import ServedModel

ITEMS = 40
IDS = torch.arange(ITEMS) * 2**55 + 1


def filled(query: nn.Module, k: int = 5, block: int = 7) -> TopK:
    vectors = torch.randn(ITEMS, 8, generator=torch.Generator().manual_seed(0))
    return TopK(query, ITEMS, 8, k, block).fill(IDS, vectors)


@pytest.mark.parametrize("block", [1, 7, 40, 100])
def test_blocks_find_what_a_full_sort_finds(block: int) -> None:
    search = filled(nn.Identity(), 5, block)
    queries = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    scores = queries @ search.vectors.T
    order = scores.argsort(1, descending=True)
    found = search(queries)
    assert torch.equal(found["items"], IDS[order[:, :5]])
    torch.testing.assert_close(found["scores"], scores.gather(1, order[:, :5]))
    seen = torch.cat([IDS[order[:, :2]], torch.zeros(6, 3, dtype=torch.int64)], 1)
    assert torch.equal(search(queries, seen=seen)["items"], IDS[order[:, 2:7]])
    few = search(queries, seen=IDS[order[:, : ITEMS - 2]])
    assert torch.equal(few["items"][:, 2:], torch.full((6, 3), -1))
    assert torch.equal(few["items"][:, :2], IDS[order[:, -2:]])
    assert torch.isinf(few["scores"][:, 2:]).all()


def test_vectors_and_scores_of_nan_are_not_the_best() -> None:
    vectors = filled(nn.Identity()).vectors.clone()
    vectors[3, 1] = torch.nan
    with pytest.raises(DataError, match=rf"vectors: that of item {IDS[3]} \(1 such items\) is NaN or"):
        TopK(nn.Identity(), ITEMS, 8).fill(IDS, vectors)
    queries = torch.ones(3, 8)
    queries[1, 0], queries[2, 7] = torch.nan, torch.inf
    found = filled(nn.Identity())(queries)
    assert torch.equal(found["items"][1:], torch.full((2, 5), -1))
    assert (found["scores"][1:] == -torch.inf).all()
    assert torch.equal(found["items"][0], filled(nn.Identity())(queries[:1])["items"][0])

    class NanForOne(nn.Module):
        def forward(self, item: torch.Tensor) -> torch.Tensor:
            return torch.where(item == found["items"][0, 2], torch.nan, 1.0)

    ranked = Recommender(filled(nn.Identity()), NanForOne(), 5)(input=queries[:1])
    expected = [*found["items"][0, [0, 1, 3, 4]].tolist(), -1]
    assert ranked["items"][0].tolist() == expected
    assert ranked["scores"][0].tolist() == [1.0] * 4 + [-torch.inf]


def recommender(weight: float = 0.0) -> Recommender:
    torch.manual_seed(0)
    towers = TwoTower((None,), (None,), 4, (8,), 8, history=True, variables={"seed": 1})
    rank = DIN(None, (), 0, 4, (8,), (8,), variables={"seed": 2})
    for table in (towers.item_tower.embed.tables[0], rank.item_table):
        table.store.count(IDS.numpy(), np.ones(ITEMS, np.int64), 0, lambda rows: {})
    with torch.no_grad():
        vectors = towers.item_tower(IDS.unsqueeze(1))
    return Recommender(TopK(towers.user_tower, ITEMS, 8, 12).fill(IDS, vectors), rank, 10, weight).eval()


def inputs(rows: int = 3) -> dict[str, Any]:
    history = IDS[torch.randint(ITEMS, (rows, 6), generator=torch.Generator().manual_seed(2))]
    user = torch.arange(rows).unsqueeze(1)
    return {"columns": user, "history": history, "length": torch.full((rows,), 6), "seen": history}


def model_of(module: Recommender, example: dict[str, Any]) -> TorchModel:
    return TorchModel.from_module(
        module,
        example=example,
        featuresCols=list(example),
        inputNames=list(example),
        outputCols=["items", "scores"],
    )


def test_candidates_are_ranked_again() -> None:
    module, given = recommender(), inputs()
    with torch.no_grad():
        found = module(**given)
        candidates = module.retrieve(**given)["items"]
        for row in range(3):
            past = [
                given[name][row : row + 1].expand(12, *given[name].shape[1:])
                for name in ("history", "length")
            ]
            scores = module.rank(candidates[row], *past)
            order = scores.argsort(descending=True)[:10]
            assert torch.equal(found["items"][row], candidates[row][order])
    assert all(
        not {*map(int, a)} & {*map(int, b)} for a, b in zip(found["items"], given["seen"], strict=True)
    )
    with pytest.raises(ModelError, match="neither retrieve nor rank takes price"):
        module(**given, price=torch.zeros(3))


def test_scores_of_retrieval_count_by_their_weight(tmp_path: Path) -> None:
    given = inputs()
    module = recommender(weight=1e6)
    with torch.no_grad():
        found = module(**given)["items"]
        assert torch.equal(found, module.retrieve(**given)["items"][:, :10])
        # Where all but three items are seen, the others stay without an item.
        few = module(**given | {"seen": IDS[: ITEMS - 3].expand(3, -1)})
    assert (few["items"][:, 3:] == -1).all()
    assert torch.isinf(few["scores"][:, 3:]).all()
    arrays = {name: value.numpy() for name, value in given.items()}
    model = model_of(module, arrays)
    save_local(model, tmp_path / "model")
    table = pa.table({name: value.tolist() for name, value in arrays.items()})
    assert ServedModel.load(str(tmp_path / "model"))(table).column("items").to_pylist() == found.tolist()


def test_ids_are_served_with_all_their_bits(tmp_path: Path) -> None:
    module, given = recommender(), {name: value.numpy() for name, value in inputs().items()}
    model = model_of(module, given)
    with torch.no_grad():
        expected = module(**inputs())["items"]
    save_local(model, tmp_path / "model")
    table = pa.table({name: value.tolist() for name, value in given.items()})
    for served in (ServedModel(model), ServedModel.load(str(tmp_path / "model"))):
        assert served(table).column("items").to_pylist() == expected.tolist()
        assert pa.types.is_int64(served(table).column("items").type.value_type)


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="k=5: there are 4 items"):
        TopK(nn.Identity(), 4, 2, 5)
    with pytest.raises(DataError, match="an item is there twice"):
        TopK(nn.Identity(), 2, 2, 1).fill(torch.tensor([1, 1]), torch.zeros(2, 2))
    with pytest.raises(DataError, match=r"ids have shape \(3,\)"):
        TopK(nn.Identity(), 2, 2, 1).fill(torch.tensor([1, 2, 3]), torch.zeros(2, 2))
    with pytest.raises(ConfigError, match="k=10: retrieve gives 5 candidates"):
        Recommender(filled(nn.Identity()), DIN(3))
    with pytest.raises(ConfigError, match="Linear takes no argument item"):
        Recommender(filled(nn.Identity()), nn.Linear(1, 1), 5)


def test_a_file_of_something_else_is_no_graph(tmp_path: Path) -> None:
    path = tmp_path / "items.npz"
    for content in (b"", b"ids and vectors", b"PK\x03\x04 no zip file"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a file of save"):
            NearestItems.load(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="holds one array, expected ids and vectors"):
        NearestItems.load(path)
    np.savez(path, ids=np.zeros(3))
    with pytest.raises(DataError, match=r"holds \['ids'\], expected ids and vectors"):
        NearestItems.load(path)


def test_a_missing_faiss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl\[retrieval\]'") as caught:
        NearestItems([1, 2], np.eye(2))
    assert caught.value.code == "config-package"


def test_a_graph_finds_nearly_all(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    vectors = random.normal(size=(500, 8)).astype(np.float32)
    ids = random.permutation(500) + 2**40
    queries = random.normal(size=(20, 8)).astype(np.float32)
    index = NearestItems(ids, vectors)
    assert index.recall(queries, 10) > 0.95
    index.save(tmp_path / "items.npz")
    again = NearestItems.load(tmp_path / "items.npz", effort=200)
    near, scores = again.search(queries, 1)
    assert near[:, 0].tolist() == ids[(queries @ vectors.T).argmax(1)].tolist()
    np.testing.assert_allclose(scores[:, 0], (queries @ vectors.T).max(1), rtol=1e-5)
    with pytest.raises(DataError, match="expected different integers"):
        NearestItems([1, 1], vectors[:2])
    with pytest.raises(DataError, match="ids: 9223372036854775809 is beyond 64-bit integers with a sign"):
        NearestItems(np.array([1, 2**63 + 1], np.uint64), vectors[:2])
    with pytest.raises(DataError, match=r"queries have shape \(2, 3\), expected \(queries, 8\)"):
        index.search(np.zeros((2, 3)))
    with pytest.raises(ConfigError, match="k=501"):
        index.search(queries, 501)
    for call in (index.search, index.recall):
        for value in (np.nan, np.inf, 1e39, None):  # the last ones as float32
            lost = [*queries[:3].tolist(), [value, *[0.0] * 7]]
            with pytest.raises(DataError, match=r"values of the query in row 3 \(1 such rows\) are NaN"):
                call(lost)
    with pytest.raises(DataError, match=r"inner products of the query in row 0 \(1 such rows\) are NaN"):
        index.search(np.full((1, 8), 3e38))
    assert [part.shape for part in index.search(queries[:0])] == [(0, 10)] * 2
