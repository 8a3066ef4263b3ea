"""Messages survive their way, and their reader owns what it may overwrite, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import (
    Average,
    FoundRows,
    GroupReport,
    Master,
    Message,
    OwnedRows,
    Partials,
    Problems,
    Report,
    Reports,
    RowGradients,
    Shard,
    State,
    Totals,
    UpdatedShard,
    UpdateFacts,
    WantedRows,
)
from sparkdl.compute.lookup import Asked, Found, RowGradient
from sparkdl.compute.problems import (
    FailedModel,
    LackingState,
    MissingPartition,
    NonFiniteGradient,
    NonFiniteLoss,
    in_order,
)
from sparkdl.keyed.entries import Entries
from sparkdl.wire import frame
from sparkdl.wire.codec import Int8, TopK
from sparkdl.wire.frame import Frame
from sparkdl.wire.held import Owned, Shared
from sparkdl.wire.layout import ParamLayout, lay_out
from sparkdl.wire.touched_rows import TouchedRows

VALUES = np.arange(6, dtype=np.float32)
USED = np.array([True, False])
LAYOUT = ParamLayout(lay_out([("table", (2, 2), 0), ("b", (2,), 0)]))
FACTS = UpdateFacts(0, 7, 8, 9, {"seconds": 1.0})
REPORT = Report(1, 2, False, 0, 0, 2.0, 3.0, 0.5, {"accuracy": 1.0}, {"seconds": 0.1}, {"buffers": VALUES})
PROBLEMS = [
    NonFiniteGradient(3, "b", (0, 2)),
    MissingPartition(2, 1),
    LackingState(2, "weights"),
    FailedModel(4, 0, "no"),
]

IDS = np.array([3, 2**62])
ADMITTED = np.array([True, False])
ENTRIES = Entries(IDS, IDS, IDS, ADMITTED, {"row": VALUES[None, :4]}, {"step": 3})

EXAMPLES: list[Message] = [
    Shard.of(1, 2.0, VALUES, USED),
    REPORT,
    Reports([REPORT.scalars()], {"counters": VALUES}),
    Problems(PROBLEMS, 3),
    UpdatedShard(FACTS, Owned(VALUES), VALUES, Reports([REPORT.scalars()], {"buffers": VALUES})),
    Partials(0, 7, np.ones(3)),
    Totals([np.ones(3), np.zeros(2)]),
    State(Shared(Frame({"kind": "state", "runs": []}, {"0.m": VALUES}))),
    Average(Shared(VALUES)),
    Master(VALUES),
    GroupReport([{"updates": [], "reports": []}], VALUES, VALUES, None, VALUES),
    WantedRows(1, {"users": Asked(IDS, IDS)}),
    FoundRows({"users": Found(IDS, ADMITTED, VALUES[None, :4])}, {"users": {"rows": 1}}),
    RowGradients(1, 2.0, {"users": RowGradient(IDS[:1], VALUES[None, :4])}),
    OwnedRows({"users": replace(ENTRIES, gone=IDS, gone_at=IDS, since=3)}, {"users": {"rows": 1}}),
    messages.together([REPORT, Average(Shared(VALUES))]),
]


def sent(message: Message, *, mine: bool = False) -> Any:
    return messages.decode(bytearray(frame.join(messages.encode(message))), mine=mine)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_what_arrives_is_what_was_sent(message: Message) -> None:
    again = frame.join(messages.encode(sent(message)))
    assert again == frame.join(messages.encode(message))
    assert type(sent(message)) is type(message)


def test_every_message_has_a_kind_of_its_own() -> None:
    assert len({message.kind for message in EXAMPLES}) == len(EXAMPLES) == len(messages._BY_KIND)


@pytest.mark.parametrize("mine", [True, False])
def test_only_what_has_arrived_may_be_overwritten(mine: bool) -> None:
    owned = Owned if mine else Shared
    assert type(sent(EXAMPLES[0], mine=mine).values(LAYOUT, 0, 6)) is owned
    assert type(sent(Average(Shared(VALUES)), mine=mine).params) is owned
    assert type(sent(EXAMPLES[7], mine=mine).state) is owned
    assert type(sent(EXAMPLES[4], mine=mine).held) is owned
    read_only = messages.decode(frame.join(messages.encode(Average(Shared(VALUES)))), mine=True)
    assert isinstance(read_only, Average)
    assert isinstance(read_only.params, Shared)  # bytes cannot be


@pytest.mark.parametrize("codec", ["bf16", "fp16", Int8(block=4), TopK(0.5)])
def test_decoded_gradients_are_owned(codec: Any) -> None:
    left_out = np.empty_like(VALUES)
    shard = sent(Shard.of(0, 1.0, VALUES, USED, codec=codec, left_out=left_out))
    found = shard.values(LAYOUT, 0, 6)
    assert isinstance(found, Owned)
    np.testing.assert_allclose(found.value + left_out, VALUES, rtol=1e-6)


def test_rows_that_are_not_sent_are_zero() -> None:
    rows = TouchedRows(LAYOUT, {0: np.array([1])})
    shard = sent(Shard.of(0, 1.0, VALUES, USED, rows))
    assert shard.values(LAYOUT, 0, 6).value.tolist() == [0, 0, 2, 3, 4, 5]
    assert shard.rows(LAYOUT).tables[0].tolist() == [1]


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_shard_arrives_alike_at_its_own_and_at_others(codec: Any) -> None:
    own = UpdatedShard(FACTS, Owned(VALUES + np.float32(0.3)))
    other, dtype = sent(own.coded(codec)), np.dtype(np.float32)
    assert other.is_coded
    assert other.values(codec, dtype).tobytes() == own.values(codec, dtype).tobytes()


def test_problems_come_once_and_in_order() -> None:
    twice = [NonFiniteLoss(5, 0, float("nan")), *PROBLEMS, NonFiniteLoss(5, 0, float("nan")), *PROBLEMS]
    found = in_order(twice)
    assert [problem.iteration for problem in found] == [2, 2, 3, 4, 5]


def test_messages_that_travel_together_come_one_by_one() -> None:
    given = [REPORT, Average(Shared(VALUES))]
    report, average = messages.opened([sent(messages.together(given), mine=True)])
    assert isinstance(report, Report)
    assert isinstance(average, Average)
    assert isinstance(average.params, Owned)
    assert messages.together(given[:1]) is REPORT
