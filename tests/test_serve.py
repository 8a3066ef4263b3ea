from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.models import TwoTowers
from support.saving import write
from support.serving import centred, save, table_classifier
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.ml.estimators.model import TorchClassificationModel, TorchModel, TorchRegressionModel
from sparkdl.ml.persistence.local import save_local
from sparkdl.ml.stages.inference import inference_of
from sparkdl.nn.int8 import Int8Linear
from sparkdl.nn.signature import Signature, TensorSpec
from sparkdl.saved import content as saved
from sparkdl.saved.content import Content
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.table.encoding import Number, TableEncoding

FORMAT_1, FORMAT_2 = (Path(__file__).parent / "fixtures" / name for name in ("format_1", "format_2"))


class Counting(nn.Module):
    """Notes the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.out(x)


class Pair(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, list[Tensor]]:
        return a + b, [a, b.bfloat16()]


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# -- predicting ---------------------------------------------------------------------------------


def test_one_array_in_batches() -> None:
    module = Counting()
    x = numbers(10, 3)
    predict = Predictor(module, batch_size=4)
    found = predict(x)
    assert module.sizes == [4, 4, 2]
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, module.out(torch.from_numpy(x)).detach().numpy(), rtol=1e-6)
    assert predict.predict(x[:1]).shape == (1, 2)
    assert predict(x[:0]).shape == (0, 2)


def test_the_module_predicts_without_dropout_and_gradients() -> None:
    module = nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 2)).train()
    predict = Predictor(module)
    np.testing.assert_array_equal(predict(numbers(4, 3)), predict(numbers(4, 3)))


def test_positional_inputs_and_nested_outputs() -> None:
    predict = Predictor(Pair(), batch_size=2)
    a, b = numbers(5, 2), numbers(5, 2) + 1
    for found in (predict(a, b), predict((a, b))):
        total, (first, second) = found
        np.testing.assert_array_equal(total, a + b)
        np.testing.assert_array_equal(first, a)
        assert second.dtype == np.float32  # numpy has no bfloat16


def test_outputs_that_do_not_count_rows_come_from_one_batch_alone() -> None:
    """An LSTM's last state has its layers first: of two batches it would be that of twice the layers."""
    module = nn.LSTM(3, 4, num_layers=2, batch_first=True).eval()
    x = numbers(8, 15).reshape(8, 5, 3)
    with torch.no_grad():
        expected, (state, _) = module(torch.from_numpy(x))
    found, (last, _) = Predictor(module)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(last, state, rtol=1e-5)
    with pytest.raises(ModelError, match=r"float32\[2, 4, 4\] for 4 rows.*batch_size=8"):
        Predictor(module, batch_size=4)(x)


def test_inputs_by_name() -> None:
    predict = Predictor(TwoTowers(), batch_size=2)
    item, context = np.array([1, 2, 3]), numbers(3, 3)
    for found in (predict({"item": item, "context": context}), predict(context=context, item=item)):
        assert {name: value.shape for name, value in found.items()} == {"score": (3,), "code": (3, 8)}


class Masked(nn.Module):
    """Takes a mask of any length."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return input_ids.sum(1) + attention_mask.sum(1)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (
            [[1, 1], [1, 1]],
            "row 0: input_ids has 3 values and attention_mask 2; expected one of the mask for",
        ),
        ([[1, 1, 1], [1, 1]], "row 1: input_ids has 3 values and attention_mask 2"),
        ([[1, 1, 1], [1, 1, 0]], ""),
    ],
)
def test_a_mask_is_as_long_as_its_tokens(mask: Any, says: str) -> None:
    predict, tokens = Predictor(Masked()), [[1, 2, 3], [4, 5, 6]]
    if says:
        with pytest.raises(DataError, match=says):
            predict(input_ids=tokens, attention_mask=mask)
    else:
        assert predict(input_ids=tokens, attention_mask=mask).tolist() == [9, 17]


def test_a_signature_with_names() -> None:
    inputs = (TensorSpec((), "int64", "item"), TensorSpec((3,), "float32", "context"))
    predict = Predictor(TwoTowers(), Signature(inputs, ()))
    found = predict(context=numbers(2, 3).astype(np.float64), item=[1, 2])
    assert found["score"].shape == (2,)
    with pytest.raises(
        DataError, match=r"takes inputs by name: \['context', 'item'\], got 2 positional ones"
    ):
        predict([1, 2], numbers(2, 3))
    with pytest.raises(DataError, match=r"got \['item'\]"):
        predict(item=[1, 2])
    with pytest.raises(DataError, match=r"input 'context', row 0: 2 values, expected 3 for shape \(3,\)"):
        predict(item=[1, 2], context=numbers(2, 2))


def test_the_signature_decides_dtype_and_shape() -> None:
    signature = Signature((TensorSpec((1, 2, 2), "float32"),), ())
    predict = Predictor(nn.Flatten(), signature)
    found = predict(np.arange(8).reshape(2, 4))
    assert found.dtype == np.float32
    assert found.shape == (2, 4)
    with pytest.raises(DataError, match=r"input 0, row 0: 3 values, expected 4 for shape \(1, 2, 2\)"):
        predict(numbers(2, 3))
    with pytest.raises(DataError, match="the module takes 1 inputs, got 2"):
        predict(numbers(2, 4), numbers(2, 4))


@pytest.mark.parametrize(
    ("dtype", "rows", "problem", "code"),
    [
        ("int64", pd.Series([1, 2, None]), "row 2: nan does not fit int64", "data-null"),
        ("int64", pd.Series([1, None], dtype="Int64"), "row 1: (null|nan does not fit int64)", "data-null"),
        ("float32", [1.0, None], "row 1: null", "data-null"),
        ("int64", [1, 2.7], r"row 1: 2\.7 does not fit int64", "data-value"),
        ("int64", np.array([2**63], np.uint64), "row 0: 9223372036854775808 does not fit", "data-value"),
        ("uint8", [1, 300], "row 1: 300 does not fit uint8", "data-value"),
        ("bool", [1.0, 7.5], r"row 1: 7\.5 does not fit bool", "data-value"),
        ("float32", [1 + 2j], "complex128 are not numbers", "data-type"),
    ],
)
def test_values_that_the_signatures_dtype_does_not_hold(
    dtype: str, rows: Any, problem: str, code: str
) -> None:
    for given, key in ((rows, None), ({"input": rows}, "input")):
        predict = Predictor(nn.Identity(), Signature((TensorSpec((), dtype, key),), ()))
        with pytest.raises(DataError, match=problem) as raised:
            predict(given)
        assert raised.value.code == code


def test_a_single_row_is_checked_as_rows_are() -> None:
    model = TorchRegressionModel(nn.Embedding(4, 1), signature=Signature((TensorSpec((), "int64"),), ()))
    assert model.predict(3) == model.module.weight[3].item()
    with pytest.raises(DataError, match=r"input 0, row 0: 2\.7 does not fit int64"):
        model.predict(2.7)


def test_the_layer_that_fails_is_named() -> None:
    with pytest.raises(ModelError, match="expected integers from 0 to 2"):
        Predictor(nn.Embedding(3, 2))(np.array([5]))


@pytest.mark.parametrize("thresholds", [None, [0.9, 0.1]])
def test_probabilities_and_labels_are_those_of_the_served_columns(thresholds: Any, tmp_path: Path) -> None:
    model = table_classifier()
    if thresholds:
        model._set(thresholds=thresholds)
    save(model, tmp_path)
    rows = {"age": [30.0, 50.0, None], "member": [True, False, None], "job": ["cook", "x", None]}
    rows["day"] = [None, date(2024, 1, 1), date(2024, 1, 6)]
    table = ServedModel(model)(pa.table(rows))
    for predict in (Predictor.of(model), Predictor.load(str(tmp_path))):
        raw = table["rawPrediction"].to_pylist()
        np.testing.assert_allclose(centred(predict.predict(rows)), raw, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(predict.predict_proba(rows), table["probability"].to_pylist(), rtol=1e-6)
        assert predict.predict_label(**rows).tolist() == table["predictedLabel"].to_pylist()


@pytest.mark.parametrize("thresholds", [None, [0.9, 0.9, 0.9, 0.1]])
def test_a_class_beyond_the_names_has_its_number_in_all_places(thresholds: Any) -> None:
    """A head may have more classes than labels: the first one without a name was null, the next an error."""
    logits = np.array([[3, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3]], np.float32)
    model = TorchClassificationModel.from_module(nn.Identity(), example=logits, thresholds=thresholds)
    model.labels = ("no", "yes")
    expected = ["no", "LABEL_2", "LABEL_3"]
    assert Predictor.of(model).predict_label(logits).tolist() == expected
    outputs = {each.column: each for each in inference_of(model).outputs}
    assert outputs["predictedLabel"].to_arrow(logits).to_pylist() == expected
    metadata = outputs["prediction"].metadata
    assert metadata is not None
    assert metadata["ml_attr"]["vals"] == ["no", "yes", *expected[1:]]  # IndexToString looks them up
    served = ServedModel(model)(pa.table({"features": pa.array(logits.tolist())}))
    assert served["predictedLabel"].to_pylist() == expected


def test_a_number_that_float16_cannot_hold_is_refused() -> None:
    predict = Predictor(nn.Linear(2, 1).half())
    rows = np.array([[6e4, 1.0]], np.float32)
    with torch.no_grad():
        expected = predict._module(torch.from_numpy(rows).half())
    assert np.array_equal(predict(rows), expected.numpy())
    with pytest.raises(DataError, match=r"100000.0 does not fit float16"):
        predict(np.array([[1e5, 1.0]], np.float32))


def test_labels_without_names_are_numbers_and_a_single_logit_has_two_classes() -> None:
    predict = Predictor(nn.Identity(), thresholds=[0.1, 0.9])
    logits = np.array([[0.0], [3.0]], np.float32)
    expected = torch.sigmoid(torch.tensor([0.0, 3.0])).numpy()
    np.testing.assert_allclose(predict.predict_proba(logits)[:, 1], expected, rtol=1e-6)
    assert predict.predict_label(logits).tolist() == [0, 1]
    assert predict.predict_label(logits[:0]).shape == (0,)
    lost = np.array([[np.nan], [3.0]], np.float32)
    assert np.array_equal(predict.predict_label(lost), [np.nan, 1.0], equal_nan=True)
    named = Predictor(nn.Identity(), labels=["no", "yes"])
    assert named.predict_label(lost).tolist() == [None, "yes"]
    with pytest.raises(
        ConfigError, match="predict_label: Pair gives other outputs .* predict\\(\\) gives outputs"
    ):
        Predictor(Pair()).predict_label(logits, logits)
    model = TorchRegressionModel.from_module(nn.Linear(2, 1), example=np.zeros((2, 2), np.float32))
    with pytest.raises(ConfigError, match="predict_proba: TorchRegressionModel is no classifier"):
        Predictor.of(model).predict_proba(np.zeros((2, 2)))


def test_without_a_signature_floats_get_the_dtype_of_the_parameters() -> None:
    assert Predictor(nn.Linear(3, 2))(np.zeros((1, 3))).dtype == np.float32
    assert Predictor(nn.Linear(3, 2).double())(numbers(1, 3)).dtype == np.float64
    assert Predictor(nn.Embedding(3, 2))(np.array([[0, 2]])).shape == (1, 2, 2)


def test_large_integers_beside_floats_are_not_rounded() -> None:
    module = nn.Identity()
    predict = Predictor(module, Signature.of_rows(module, (torch.zeros(2, 2, dtype=torch.int64),)))
    expected = [[2**53 + 1, 2], [3, 2**62 + 1]]
    assert predict(expected).tolist() == expected
    assert predict([[2**53 + 1, 2.0], [3, 2**62 + 1]]).tolist() == expected
    frame = pd.DataFrame({"a": [2**53 + 1, 3], "b": [2.0, 4.0]})
    assert predict(frame).tolist() == [[2**53 + 1, 2], [3, 4]]
    with pytest.raises(DataError, match="row 1: 0.5 does not fit int64"):
        predict([[2**53 + 1, 2], [3, 0.5]])


def test_arrays_that_torch_does_not_take() -> None:
    predict = Predictor(nn.Identity())
    x = numbers(4, 3)
    for odd in (x[::-1], x.astype(">f4"), np.broadcast_to(x[0], (4, 3)), x.tolist(), np.asfortranarray(x)):
        np.testing.assert_array_equal(predict(odd), np.asarray(odd).astype(np.float32))


@pytest.mark.parametrize("rows", [[[1, 2], [3, None]], [[[1.0], [2.0]], [[1.0], [pd.NA]]]])
def test_null_in_a_row_has_the_code_of_null(rows: Any) -> None:
    for predict in (Predictor(nn.Identity()), Predictor(nn.Identity(), Signature((TensorSpec((2,)),), ()))):
        with pytest.raises(DataError, match="input 0, row 1: null") as raised:
            predict(rows)
        assert raised.value.code == "data-null"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "expected either positional arrays or arrays by name"),
        ((numbers(2, 3),), {"x": numbers(2, 3)}, r"got 1 positional and \['x'\]"),
        ((["a", "b"],), {}, "expected an array of numbers with a dimension for rows, got <U1"),
        ((3.0,), {}, r"of shape \(\)"),
        ((reduce(lambda inner, _: [inner], range(5000), 1.0),), {}, r"input 0, row 0: \[.* is not a number"),
        ((numbers(2, 3), numbers(3, 3)), {}, r"different numbers of rows: \[2, 3\]"),
    ],
)
def test_inputs_that_are_refused(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Predictor(Pair())(*args, **kwargs)


def test_several_threads_at_once() -> None:
    module = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    predict = Predictor(module, batch_size=16)
    inputs = [numbers(rows, 8) for rows in range(1, 60)]
    expected = [predict(x) for x in inputs]
    # Sums of another number of torch's threads round otherwise; a new thread has its own number.
    threads = (torch.get_num_threads(),)
    with ThreadPoolExecutor(8, initializer=torch.set_num_threads, initargs=threads) as pool:
        for mine, theirs in zip(expected, pool.map(predict, inputs), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_quantized() -> None:
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    x = numbers(20, 8)
    exact, rounded = Predictor(module)(x), Predictor(module, quantize=True)(x)
    assert 0 < np.abs(exact - rounded).max() < 0.03
    assert isinstance(module[0], nn.Linear)


def test_a_model_that_is_saved_quantized_predicts_so(tmp_path: Path) -> None:
    model = TorchModel.from_module(nn.Linear(64, 32), example=numbers(2, 64), featuresCol="x")
    x, exact = numbers(20, 64), Predictor.of(model)
    model.setQuantize(True)
    save_local(model, tmp_path / "model")
    rounded = Predictor(model.module, quantize=True)(x)
    assert (rounded != exact(x)).any()
    for found in (Predictor.of(model), Predictor.load(str(tmp_path / "model"))):
        np.testing.assert_array_equal(found(x), rounded)
    unrounded = Predictor.load(str(tmp_path / "model"), quantize=False)
    np.testing.assert_array_equal(unrounded(x), exact(x))


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_batch_sizes_that_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="expected a positive integer"):
        Predictor(nn.Identity(), batch_size=size)


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "regressor", "pipeline_model/stages/1_*"])
@pytest.mark.parametrize("folder", [FORMAT_1, FORMAT_2])
def test_models_of_all_formats_are_read(folder: Path, name: str) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    (path,) = folder.glob(name)
    found = Predictor.load(str(path))(np.array(expected["x"], np.float32))
    np.testing.assert_allclose(found, expected[name.split("/")[0]], rtol=1e-5, atol=1e-6)


def test_a_remote_folder(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    write(tmp_path / "model", Content(module))
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "model"), "/served", recursive=True)
    x = numbers(4, 3)
    np.testing.assert_array_equal(Predictor.load("memory://served")(x), Predictor(module)(x))
    memory.rm("/served", recursive=True)


def test_options_of_load(tmp_path: Path) -> None:
    write(tmp_path / "model", Content(nn.Sequential(nn.Linear(3, 2))))
    predict = Predictor.load(str(tmp_path / "model"), quantize=True, batch_size=1)
    assert isinstance(predict._module[0], Int8Linear)
    assert predict(numbers(3, 3)).shape == (3, 2)


def test_the_previous_model_is_read_while_a_save_is_between_two_renames(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    write(tmp_path / ".model.previous", Content(module))
    x = numbers(4, 3)
    np.testing.assert_array_equal(Predictor.load(str(tmp_path / "model"))(x), Predictor(module)(x))


def test_a_pickle_needs_opting_in_at_both_ends(tmp_path: Path) -> None:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    module, path = Local(), tmp_path / "model"
    with pytest.raises(
        ConfigError, match=r"module \(Local\) cannot be saved by import path .*option\('pickle', 'true'\)"
    ):
        saved.describe(Content(module), allow_pickle=False)
    write(path, Content(module), allow_pickle=True)
    assert b"weight" in (path / "code" / "part-1.parquet").read_bytes()
    with pytest.raises(
        ConfigError, match=r"holds a pickle \(module\), .* Predictor\.load\(path, pickle=True\)"
    ):
        Predictor.load(str(path))
    predict = Predictor.load(str(path), pickle=True)
    x = numbers(4, 3)
    np.testing.assert_array_equal(predict(x), Predictor(module)(x))
    assert predict._module.a.weight is predict._module.b.weight  # type: ignore[union-attr]


def test_a_pickle_that_the_description_does_not_mention_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "model", Content(nn.Linear(3, 2)))
    code = tmp_path / "model" / "code" / "part-0.parquet"
    pq.write_table(pa.table({"offset": [0], "data": [b"cos\nsystem\n(S'false'\ntR."]}), code)
    Predictor.load(str(tmp_path / "model"))


def test_what_is_no_model_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing complete was saved there"):
        Predictor.load(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="cannot be opened"):
        Predictor.load("nosuch://model")
    with pytest.raises(
        ConfigError, match=r"holds a pipeline of VectorAssembler_\w+, TorchModel_\w+: give the folder"
    ):
        Predictor.load(str(FORMAT_1 / "pipeline_model"))
    with pytest.raises(
        ConfigError, match=r"holds a sparkdl\.ml\.estimator\.TorchClassifier: expected a fitted"
    ):
        Predictor.load(str(FORMAT_1 / "estimator"))
    for text, message in (
        ("{}", "was not saved by sparkdl"),
        ("[", "is not JSON"),
        ("3", "no metadata of Spark ML"),
    ):
        folder = tmp_path / message[:5] / "metadata"
        folder.mkdir(parents=True)
        (folder / "part-0").write_text(text)
        with pytest.raises(ConfigError, match=message):
            Predictor.load(str(folder.parent))


def test_a_newer_format_is_explained(tmp_path: Path) -> None:
    write(tmp_path / "model", Content(nn.Linear(3, 2)), format=4, version="9.0")
    with pytest.raises(
        ConfigError, match=r"has format 4, written by sparkdl 9\.0; .* up to 3: install a newer one"
    ):
        Predictor.load(str(tmp_path / "model"))


def test_missing_pieces_are_told(tmp_path: Path) -> None:
    write(tmp_path / "model", Content(nn.Linear(30, 2)))
    (tmp_path / "model" / "weights" / "part-0.parquet").unlink()
    with pytest.raises(ConfigError, match="weights are not complete"):
        Predictor.load(str(tmp_path / "model"))
    (tmp_path / "model" / "weights" / "part-1.parquet").unlink()
    with pytest.raises(ConfigError, match="there are none"):
        Predictor.load(str(tmp_path / "model"))


def test_an_incomplete_description_is_told(tmp_path: Path) -> None:
    write(tmp_path / "model", Content(nn.Linear(3, 2)), module={"source": None})
    with pytest.raises(ConfigError, match="its description is not complete"):
        Predictor.load(str(tmp_path / "model"))


def test_frozen_parameters_stay_frozen(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    write(tmp_path / "model", Content(module))
    parameters = dict(Predictor.load(str(tmp_path / "model"))._module.named_parameters())
    assert parameters["weight"].requires_grad
    assert not parameters["bias"].requires_grad


def test_a_tables_column_may_be_called_self() -> None:
    encoding = TableEncoding((Number("self", "number", 1.0, 2.0),), (), {}, 10)
    predictor = Predictor(nn.Identity(), encoding=encoding)
    assert predictor.predict(self=[5.0, -1.0]).tolist() == [[2.0], [-1.0]]


@pytest.mark.parametrize("rows", [np.zeros((2, 4)), [[1.0, 2.0]], "age"])
def test_a_tables_model_refuses_what_has_no_columns(rows: Any) -> None:
    with pytest.raises(DataError, match="expected the columns of a table, .*: age, member, job, day"):
        Predictor.of(table_classifier()).predict(rows)
