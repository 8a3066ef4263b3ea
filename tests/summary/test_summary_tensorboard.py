import fsspec
import numpy as np
import pytest
import torch
from support.runs import FakeRun
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.summary import TensorBoard
from sparkdl.train.options.triggers import EveryEpoch, EveryIterations

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events


def scalars(folder, tag):
    return {event.step: event.value for event in read(folder).Scalars(tag)}


def test_scalars(tmp_path):
    FakeRun(steps=2).train(TensorBoard(tmp_path / "logs"), iterations=4, extras={"penalty": 2.0})
    assert scalars(tmp_path / "logs", "train/loss") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    assert scalars(tmp_path / "logs", "val/accuracy") == pytest.approx({2: 2 / 3, 4: 4 / 5})
    found = {tag: scalars(tmp_path / "logs", tag)[4] for tag in read(tmp_path / "logs").Tags()["scalars"]}
    assert found["train/lr"] == pytest.approx(0.1)
    assert found["train/records_per_second"] == pytest.approx(20)
    assert found["phases/compute"] == pytest.approx(0.3)
    assert found["bytes/weights"] == 100
    assert found["extras/penalty"] == 2


def test_a_point_is_about_all_iterations_since_the_last(tmp_path):
    FakeRun().train(TensorBoard(tmp_path, scalars=EveryIterations(2)), iterations=3)
    assert scalars(tmp_path, "train/loss") == pytest.approx({2: 0.75, 3: 1 / 3})  # the rest at the end


def test_options_are_text(tmp_path):
    FakeRun(seed=7).train(TensorBoard(tmp_path), iterations=1)
    (event,) = read(tmp_path).Tensors("options/text_summary")
    assert b"|seed|`7`|" in event.tensor_proto.string_val[0]


def test_histograms_of_weights_and_a_step_later_of_gradients(tmp_path):
    hook = TensorBoard(tmp_path, histograms=EveryEpoch())
    assert hook.gradients == EveryEpoch()
    run = FakeRun(steps=2)
    run.module[0].weight.data[0, 0] = float("nan")  # must not keep the others from being shown
    run.train(hook, iterations=3)
    events = read(tmp_path)
    assert [event.step for event in events.Histograms("weights/2.weight")] == [0, 2]
    assert events.Histograms("weights/0.weight")[0].histogram_value.num == 11
    (event,) = events.Histograms("gradients/2.weight")
    assert event.step == 3
    assert event.histogram_value.num == 8
    assert event.histogram_value.min == event.histogram_value.max == 1


def test_gradients_are_not_asked_for_without_histograms(tmp_path):
    assert TensorBoard(tmp_path).gradients is None


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, user, item):
        return self.layer(user - item)


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("module", "features"),
    [
        (None, ONES),
        (TwoInputs(), (ONES, ONES)),
        (TwoInputs(), {"item": ONES, "user": ONES}),
    ],
)
def test_graph(tmp_path, module, features):
    FakeRun(module=module, features=features).train(TensorBoard(tmp_path, graph=True), iterations=1)
    assert any("aten::linear" in node.op for node in read(tmp_path).Graph().node)


def test_graph_gets_transformed_rows(tmp_path):
    def transform(x):
        return x.float() / 255 + torch.rand(2, 3)

    run = FakeRun(features=np.ones((2, 3), np.uint8), transform=transform)
    before = torch.random.get_rng_state()
    run.train(TensorBoard(tmp_path, graph=True), iterations=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert read(tmp_path).Tags()["graph"]


class Untraceable(nn.Linear):
    def forward(self, x):
        raise RuntimeError("not today\nnor tomorrow")


def test_a_module_that_cannot_be_traced_is_a_warning(tmp_path, capfd):
    run = FakeRun(module=Untraceable(3, 2))
    with pytest.warns(UserWarning, match=r"Untraceable cannot be traced.*RuntimeError: not today"):
        run.train(TensorBoard(tmp_path, graph=True), iterations=1)
    assert scalars(tmp_path, "train/loss") == {1: 1}
    assert capfd.readouterr().out == ""


def test_embeddings(tmp_path):
    hook = TensorBoard(tmp_path, embeddings={"0.weight": ["a", "b", "c", "d"], "2.weight": None})
    run = FakeRun()
    run.train(hook, iterations=1)
    vectors = np.loadtxt(tmp_path / "00001" / "0.weight" / "tensors.tsv")
    assert np.allclose(vectors, run.parameters()["0.weight"], atol=1e-5)
    assert (tmp_path / "00001" / "0.weight" / "metadata.tsv").read_text().split() == list("abcd")
    assert (tmp_path / "projector_config.pbtxt").read_text().count("embeddings {") == 2


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        ({"words": None}, r"'words' is not a .* with two dimensions; there are 0\.weight, 2\.weight"),
        ({"0.bias": None}, "'0.bias' is not a"),
        ({"0.weight": ["a"]}, "'0.weight' has 4 rows and 1 labels"),
    ],
)
def test_embeddings_are_checked_before_training(tmp_path, embeddings, message):
    with pytest.raises(ConfigError, match=message):
        FakeRun().train(TensorBoard(tmp_path, embeddings=embeddings))


def test_remote_folders_get_a_copy(tmp_path):
    FakeRun().train(
        TensorBoard("memory://tb/run1", embeddings={"0.weight": None}), iterations=3, validate=False
    )
    store = fsspec.filesystem("memory")
    store.get("/tb/run1", str(tmp_path / "copy"), recursive=True)
    assert scalars(tmp_path / "copy", "train/loss") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3})
    assert (tmp_path / "copy" / "00003" / "0.weight" / "tensors.tsv").exists()


def test_a_run_that_fails_leaves_what_it_has(tmp_path):
    class Boom(TensorBoard):
        def on_epoch_end(self, run):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        FakeRun(steps=2).train(Boom(tmp_path), iterations=4)
    assert list(scalars(tmp_path, "train/loss")) == [1, 2]


def test_ending_without_a_beginning_does_nothing(tmp_path):
    TensorBoard(tmp_path / "logs").on_train_end(FakeRun())
    assert not (tmp_path / "logs").exists()


def test_the_same_hook_serves_two_runs(tmp_path):
    hook = TensorBoard(tmp_path)
    FakeRun().train(hook, iterations=1)
    FakeRun().train(hook, iterations=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_package_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("sparkdl.summary.tensorboard.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard(tmp_path)
