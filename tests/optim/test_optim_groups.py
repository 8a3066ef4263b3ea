import pickle
import re
from functools import partial

import pytest
import torch
from torch import nn, optim

from sparkdl.exceptions import ConfigError
from sparkdl.nn.serialize import dumps, loads
from sparkdl.optim import Ftrl, ParamGroup, bias_and_norm, check_shardable, optimizer_spec
from sparkdl.optim.regularize import Penalty
from sparkdl.wire.layout import ParamLayout, lay_out

SGD = partial(optim.SGD, lr=0.1, weight_decay=0.5)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 2)
        self.body = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm((4, 3)), nn.Linear(3, 3))
        self.head = nn.Linear(3, 5)
        self.head.weight.data = torch.zeros(5, 3)


def groups_of(module, group_of):
    return {name: group_of(p) for name, p in module.named_parameters()}


def spec_of(groups, optimizer=SGD, module=None):
    module = module or Model()
    spec, group_of = optimizer_spec(optimizer, module, groups)
    return spec, groups_of(module, group_of)


# -- what matches -------------------------------------------------------------------------------

MATCHES = {
    "glob": ("*.bias", ["body.0.bias", "body.1.bias", "body.2.bias", "head.bias"]),
    "exact": ("head.weight", ["head.weight"]),
    "regex": (re.compile(r"body\.[02]\.w.*"), ["body.0.weight", "body.2.weight"]),
    "predicate": (lambda name, p, owner: isinstance(owner, nn.Embedding), ["embed.weight"]),
    "bias_and_norm": (
        bias_and_norm,
        ["body.0.bias", "body.1.weight", "body.1.bias", "body.2.bias", "head.bias"],
    ),
}


@pytest.mark.parametrize(("match", "names"), MATCHES.values(), ids=MATCHES)
def test_matching_parameters_are_a_group_of_their_own(match, names):
    spec, found = spec_of([ParamGroup(match, weight_decay=0.0)])
    assert [name for name, group in found.items() if group == 1] == names
    assert spec.groups == ({}, {"weight_decay": 0.0})
    first, second = spec.build([(torch.zeros(1), 0), (torch.zeros(1), 1)]).param_groups
    assert (first["lr"], first["weight_decay"]) == (0.1, 0.5)
    assert (second["lr"], second["weight_decay"]) == (0.1, 0.0)


def test_a_regular_expression_must_match_the_whole_name():
    with pytest.raises(ConfigError, match=r"groups: re.compile\('bias'\) matches no parameter"):
        spec_of([ParamGroup(re.compile("bias"), lr=1.0)])


def test_the_first_match_wins_and_unmatched_parameters_come_first():
    spec, found = spec_of([ParamGroup("body.0.*", lr=1.0), ParamGroup("*.bias", lr=2.0)])
    assert [g.get("lr") for g in spec.groups] == [None, 1.0, 2.0]
    assert (found["embed.weight"], found["body.0.bias"], found["head.bias"]) == (0, 1, 2)
    assert spec.shadow()[0].param_groups[0]["lr"] == 0.1


def test_without_unmatched_parameters_there_is_no_group_for_them():
    spec, found = spec_of([ParamGroup("body.*", lr=1.0), ParamGroup("*", lr=2.0)])
    assert spec.groups == ({"lr": 1.0}, {"lr": 2.0})
    assert set(found.values()) == {0, 1}


def test_a_predicate_that_matches_nothing_makes_no_group():
    spec, found = spec_of([ParamGroup(lambda name, p, owner: False, lr=1.0)])
    assert spec == type(spec)(SGD)
    assert set(found.values()) == {0}


def test_a_tied_parameter_matches_by_each_of_its_names():
    module = Model()
    module.tied = nn.Linear(2, 5, bias=False)
    module.tied.weight = module.embed.weight
    _, found = spec_of([ParamGroup("embed.*", lr=1.0)], module=module)
    assert found["embed.weight"] == 1
    for match in ("tied.*", re.compile(r"tied\.weight")):
        _, found = spec_of([ParamGroup(match, lr=1.0)], module=module)
        assert found["embed.weight"] == 1
    spec, _ = spec_of([], {"tied.*": partial(optim.SGD, lr=2.0), "*": SGD}, module)
    assert spec.build([(module.tied.weight, 0)]).param_groups[0]["lr"] == 2.0
    with pytest.raises(ConfigError, match=r"'tied\.\*' matches only parameters that an earlier pattern"):
        spec_of([ParamGroup("embed.*", lr=1.0), ParamGroup("tied.*", lr=2.0)], module=module)


def test_a_predicate_gets_the_owner_of_a_tied_parameters_first_name():
    module = Model()
    module.tied = nn.Linear(2, 5, bias=False)
    module.tied.weight = module.embed.weight
    seen = {}
    spec_of([ParamGroup(lambda name, p, owner: seen.update({name: owner}) is not None)], module=module)
    assert seen["embed.weight"] is module.embed
    _, found = spec_of(
        [ParamGroup(lambda _, p, owner: isinstance(owner, nn.Embedding), lr=1.0)], module=module
    )
    assert found["embed.weight"] == 1


def test_frozen_parameters_match_too():
    module = Model()
    module.embed.weight.requires_grad_(False)
    _, found = spec_of([ParamGroup("embed.*", lr=1.0)], module=module)
    assert found["embed.weight"] == 1


def test_groups_are_shipped_without_their_predicates():
    spec, _ = spec_of([ParamGroup(bias_and_norm, weight_decay=0.0, l2=0.1)])
    assert pickle.loads(dumps(spec, "optimizer")).groups == spec.groups
    assert loads(dumps(spec, "optimizer")).penalties == spec.penalties


# -- penalties ----------------------------------------------------------------------------------


def test_penalties_are_told_from_the_optimizers_options():
    spec, _ = spec_of([ParamGroup("*.bias", l1=0.1, lr=1.0), ParamGroup("head.*", l2=0.2)])
    assert spec.groups == ({}, {"lr": 1.0}, {})
    assert spec.group_penalties == (Penalty(), Penalty(l1=0.1), Penalty(l2=0.2))
    assert "l1" not in spec.build([(torch.zeros(1), 1)]).param_groups[0]


def test_an_optimizer_with_options_of_these_names_gets_them():
    spec, _ = spec_of([ParamGroup("*.bias", l1=0.1)], Ftrl)
    assert spec.groups == ({}, {"l1": 0.1})
    assert not any(spec.group_penalties)


def test_groups_of_an_instance_may_have_penalties():
    module = nn.Linear(2, 1)
    groups = [{"params": [module.weight], "l1": 0.5}, {"params": [module.bias], "lr": 1.0}]
    spec, _ = optimizer_spec(optim.SGD(groups, lr=0.1), module)
    assert spec.group_penalties == (Penalty(l1=0.5), Penalty())
    assert "l1" not in spec.groups[0]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "0.1", True, None])
@pytest.mark.parametrize("name", ["l1", "l2"])
def test_penalties_are_checked(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value!r}: expected a finite number"):
        spec_of([ParamGroup("*", **{name: value})])


# -- several optimizers ------------------------------------------------------------------------

SEVERAL = {"embed.*": partial(optim.SparseAdam, lr=0.3), "*.bias": optim.Adam, "*": SGD}


def test_one_optimizer_per_pattern():
    spec, found = spec_of([], SEVERAL)
    assert spec.name == "SparseAdam + Adam + SGD"
    assert spec.classes == (optim.SparseAdam, optim.Adam, optim.SGD)
    assert spec.group_ranges == (range(1), range(1, 2), range(2, 3))
    assert {found[n] for n in ("embed.weight",)} == {0}
    assert {found[n] for n in ("head.bias", "body.1.bias")} == {1}
    assert {found[n] for n in ("head.weight", "body.0.weight")} == {2}
    assert spec.reductions == 0
    assert check_shardable(spec) is True


def test_groups_of_several_optimizers_count_on():
    spec, found = spec_of([ParamGroup("head.*", lr=7.0), ParamGroup("body.1.*", lr=8.0, l2=0.1)], SEVERAL)
    assert found == {
        "embed.weight": 0,
        "body.0.weight": 4,
        "body.0.bias": 1,
        "body.1.weight": 6,
        "body.1.bias": 3,
        "body.2.weight": 4,
        "body.2.bias": 1,
        "head.weight": 5,
        "head.bias": 2,
    }
    assert [p.l2 for p in spec.group_penalties] == [0, 0, 0, 0.1, 0, 0, 0.1]
    built = spec.build_all([(torch.zeros(1), g) for g in (6, 3, 1)])
    assert [(type(b.optimizer), b.groups) for b in built] == [(optim.Adam, [1, 3]), (optim.SGD, [6])]
    rates = [[g["lr"] for g in b.optimizer.param_groups] for b in built]
    assert rates == [[1e-3, 8.0], [8.0]]


def test_a_predicate_without_parameters_makes_no_optimizer():
    optimizers = {bias_and_norm: optim.Adam, (lambda *_: False): Ftrl, "*": SGD}
    assert spec_of([], optimizers)[0].name == "Adam + SGD"


def test_hyper_parameters_of_all_groups_from_a_scheduler():
    spec, _ = spec_of([ParamGroup("head.*", lr=7.0)], SEVERAL)
    shadows = spec.shadow()
    assert [type(s) for s in shadows] == [optim.SparseAdam, optim.Adam, optim.SGD]
    assert spec.hyper_of(shadows) == ({},) * 5
    scheduler = optim.lr_scheduler.StepLR(shadows[1], 1, 0.5)
    shadows[1].step()
    scheduler.step()
    assert spec.hyper_of(shadows) == ({}, {"lr": 0.5e-3}, {"lr": 3.5}, {}, {})


# -- errors -------------------------------------------------------------------------------------

LINEAR = nn.Linear(2, 1)
REJECTED = {
    "unmatched": ({"bias": SGD}, [], r"parameter 'weight' matches none of the patterns 'bias'; add a last"),
    "no parameter": (
        {"embed.*": SGD, "*": SGD},
        [],
        r"optimizer: 'embed\.\*' matches no parameter; .* weight, bias ",
    ),
    "shadowed": ({"*": SGD, "bias": SGD}, [], "'bias' matches only parameters that an earlier pattern takes"),
    "not a factory": ({"*": 0.1}, [], r"optimizer\['\*'\]=0.1: expected a factory"),
    "not a pattern": ({1: SGD}, [], "optimizer: found pattern 1; expected a glob pattern"),
    "empty": ({}, [], "parameter 'weight' matches none of the patterns"),
    "group without parameter": (SGD, [ParamGroup("head.*", lr=1.0)], r"groups: 'head\.\*' matches no param"),
    "unknown option": (
        SGD,
        [ParamGroup("bias", beta=1)],
        r"ParamGroup\('bias', beta=1\): SGD has no option 'beta'; expected one of dampening, .*, l1, l2, lr",
    ),
    "bad value": (SGD, [ParamGroup("bias", lr=-1)], "SGD refuses it: Invalid learning rate: -1"),
    "bad factory": (partial(optim.SGD, lr=-1), [ParamGroup("bias", lr=1)], "optimizer SGD: Invalid learning"),
    "not a group": (SGD, [{"lr": 1}], r"groups: found \{'lr': 1\}, expected entries such as ParamGroup"),
    "instance": (
        optim.SGD(LINEAR.parameters()),
        [ParamGroup("bias")],
        "the SGD has parameter groups already",
    ),
}


@pytest.mark.parametrize(("optimizer", "groups", "message"), REJECTED.values(), ids=REJECTED)
def test_what_is_rejected(optimizer, groups, message):
    with pytest.raises(ConfigError, match=message):
        optimizer_spec(optimizer, LINEAR, groups)


@pytest.mark.parametrize("match", [1, None, ["*.bias"]], ids=repr)
def test_what_is_no_pattern(match):
    with pytest.raises(ConfigError, match="expected a glob pattern such as"):
        ParamGroup(match, lr=0.1)


def test_parameters_cannot_be_given():
    with pytest.raises(ConfigError, match="the parameters are those that match"):
        ParamGroup("*", params=[])


def test_repr_and_equality():
    assert repr(ParamGroup(bias_and_norm, lr=1)) == "ParamGroup(bias_and_norm, lr=1)"
    assert ParamGroup("*", lr=1) == ParamGroup("*", lr=1) != ParamGroup("*", lr=2)


def test_the_layout_takes_the_groups():
    spec, found = spec_of([ParamGroup("*.bias", lr=1.0)])
    layout = ParamLayout(lay_out([(name, (2,), group) for name, group in found.items()]))
    assert {p.group for p in layout.params} == set(range(len(spec.groups)))
