"""When tasks exchange directly again after a loss."""

from __future__ import annotations

from sparkdl.allreduce.transport.direct.transport import BackOff


def test_the_first_loss_of_a_process_that_is_gone_is_tried_again_at_once() -> None:
    """It says why nobody came; a second one in a row may be a network that lets nobody through."""
    back_off = BackOff()
    assert back_off.lost(10.0, begun=False, gone=True) == 0.0
    assert back_off.is_over(10.0)
    assert back_off.lost(11.0, begun=False, gone=True) == 1.0
    assert not back_off.is_over(11.9)
    assert back_off.lost(13.0, begun=False, gone=True) == 2.0
    back_off.completed()
    back_off.completed()
    assert back_off.lost(20.0, begun=False, gone=True) < 1.1


def test_somebody_who_is_late_may_wait_for_a_slot() -> None:
    back_off = BackOff()
    assert back_off.lost(10.0, begun=False) == 1.0
    assert back_off.patience == 1


def test_of_a_group_that_had_begun_the_next_attempt_comes_at_once_and_waits_longer() -> None:
    back_off = BackOff()
    assert back_off.lost(10.0, begun=True) == 0.0
    assert back_off.patience == 2
