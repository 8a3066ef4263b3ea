import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.wire.layout import ParamLayout, TensorPlace, lay_out

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=6)


@settings(deadline=None)
@given(SHAPES)
def test_tensors_lie_one_after_the_other(shapes):
    specs = lay_out([(f"p{i}", shape, i % 2) for i, shape in enumerate(shapes)])
    end = 0
    for i, (spec, shape) in enumerate(zip(specs, shapes, strict=True)):
        assert (spec.name, spec.shape, spec.group, spec.offset) == (f"p{i}", shape, i % 2, end)
        end = spec.end
    assert ParamLayout(specs).numel == end


@pytest.mark.parametrize(("shape", "numel"), [((), 1), ((3,), 3), ((2, 3, 4), 24), ((2, 0), 0)])
def test_numel(shape, numel):
    spec = TensorPlace("p", shape, offset=5)
    assert (spec.numel, spec.end) == (numel, 5 + numel)


def test_param_at_finds_the_owner_and_skips_empty_ones():
    layout = ParamLayout(lay_out([("a", (2,), 0), ("none", (0, 3), 0), ("b", (), 0), ("c", (1, 2), 0)]))
    assert [layout.param_at(i).name for i in range(layout.numel)] == ["a", "a", "b", "c", "c"]
    for outside in (-1, 5):
        with pytest.raises(IndexError):
            layout.param_at(outside)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
def test_itemsize(dtype, size):
    assert ParamLayout((), dtype=dtype).itemsize == size


def test_an_empty_layout_has_no_elements():
    assert ParamLayout(()).numel == 0
