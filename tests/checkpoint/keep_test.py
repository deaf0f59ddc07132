"""Laws of when checkpoints are saved and deleted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.checkpoint.keep import expired, is_due, is_milestone

steps = st.lists(st.integers(0, 5000), unique=True)


def test_newest_and_every_nth_checkpoint_are_kept() -> None:
    assert expired([100, 200, 300, 400], newest=400, keep_last=2) == [100, 200]
    assert expired([100, 200, 300, 400], newest=400, keep_last=1, keep_every=200) == [100, 300]
    assert expired([], newest=5, keep_last=3) == []
    assert expired([5], newest=5, keep_last=1) == []


@settings(deadline=None)  # machines are busy
@given(existing=steps, keep=st.integers(1, 5), data=st.data())
def test_newest_and_later_checkpoints_are_never_deleted(existing, keep, data) -> None:
    newest = data.draw(st.sampled_from([*existing, 7]))
    gone = expired(existing, newest=newest, keep_last=keep)
    assert all(s < newest for s in gone)
    assert len([s for s in existing if s <= newest]) - len(gone) <= keep


def test_later_damaged_checkpoints_are_not_counted() -> None:
    assert expired([100, 150, 200, 300], newest=150, keep_last=2) == []


@settings(deadline=None)
@given(saved=steps, keep=st.integers(1, 4), reach=st.integers(1, 3000))
def test_checkpoint_for_rewind_is_kept(saved, keep, reach) -> None:
    there, ever = list[int](), sorted(saved)
    for n, newest in enumerate(ever):
        there.append(newest)
        gone = expired(there, newest=newest, keep_last=keep, reach=reach)
        there = [s for s in there if s not in gone]
        assert len(there) <= keep + 2
        for spiked in range(newest + 1, (ever[n + 1] if n + 1 < len(ever) else newest + reach) + 1):
            assert (ever[0] <= spiked - reach) == (there[0] <= spiked - reach)
    assert expired([3, 6, 9, 12], newest=12, keep_last=2, reach=8) == []
    assert expired([3, 6, 9, 12, 15], newest=15, keep_last=2, reach=8) == [3]
    assert expired([3, 6, 9, 12], newest=12, keep_last=2) == [3, 6]


def test_pythia_milestones() -> None:
    found = [s for s in range(4001) if is_milestone(s, "pythia")]
    assert found == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000, 4000]
    assert not any(is_milestone(s, "none") for s in range(2000))
    assert all(is_milestone(s, "pythia") == is_milestone(s, 1000) for s in range(4001))
    assert [s for s in range(31) if is_milestone(s, 10)] == [0, 1, 2, 4, 8, 10, 20, 30]
    assert expired(range(11), newest=10, keep_last=1, milestones="pythia") == [3, 5, 6, 7, 9]


def test_last_step_is_saved_and_step_0_only_as_milestone() -> None:
    assert [s for s in range(11) if is_due(s, every=4, last=10)] == [4, 8, 10]
    assert [s for s in range(4) if is_due(s, every=1, last=10)] == [1, 2, 3]
    assert [s for s in range(4) if is_due(s, every=100, last=10, milestones="pythia")] == [0, 1, 2]
