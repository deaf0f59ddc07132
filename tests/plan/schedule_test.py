"""Schedules are complete, finish under blocking sends, and hold what theory says."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import small
from trivium.cost.in_flight import peak_counts_of
from trivium.cost.timeline import simulate
from trivium.errors import ConfigError
from trivium.plan.plan import Plan, head_length
from trivium.plan.schedule import (
    SCHEDULE_NAMES,
    SPLIT_SCHEDULES,
    Action,
    Op,
    Row,
    Schedule,
    ScheduleName,
    backward,
    forward,
    gpipe,
    input_gradient,
    inputs,
    interleaved,
    is_split,
    last_stage,
    make_schedule,
    one_forward_one_backward,
    parse_schedule,
    render,
    rounds,
    stages_of_named,
    stages_of_ranks,
    weight_gradient,
    zero_bubble_h1,
    zero_bubble_v,
)
from trivium.plan.transfers import Event, Program, Transfer, sends, with_transfers


def tables() -> list[tuple[str, int, int, int]]:
    plain = [(n, p, m, 1) for n in ("gpipe", "1f1b", "1f1b-split") for p in range(1, 7) for m in (1, 2, 3, 5, 8, 16)]
    chunked = [("interleaved", p, p * k, v) for p in range(2, 6) for k in (1, 2, 4) for v in (1, 2, 3)]
    zero_bubble = [("zb-h1", p, m, 1) for p in range(1, 6) for m in (1, 2, 4, 5, 11)]
    zero_bubble += [("zb-v", p, m, 2) for p in range(2, 6) for m in (1, 2, 4, 9, 13)]
    turns = [("zb-turns", p, m, 2) for p in range(2, 6) for m in (1, 2, 5, 13)]
    return plain + chunked + zero_bubble + turns


def table(name: str, p: int, m: int, v: int) -> Schedule:
    return make_schedule(name, pipeline=p, micro_batches=m, chunks=v)


@pytest.mark.parametrize(("name", "p", "m", "v"), tables())
def test_every_stage_does_each_micro_batch_once_forward_and_once_backward(name: str, p: int, m: int, v: int) -> None:
    actions, stages = [a for row in table(name, p, m, v) for a in row], p * v + (name == "zb-turns")
    kinds = (forward, input_gradient, weight_gradient) if name in SPLIT_SCHEDULES else (forward, backward)
    assert len(actions) == len(set(actions)) == len(kinds) * m * stages
    assert set(actions) == {make(i, s) for make in kinds for i in range(m) for s in range(stages)}


@pytest.mark.parametrize(("name", "p", "m", "v"), tables())
def test_no_program_deadlocks_even_if_sends_block_until_received(name: str, p: int, m: int, v: int) -> None:
    assert finishes_under_rendezvous(with_transfers(table(name, p, m, v)))


@pytest.mark.parametrize(("name", "p", "m", "v"), tables())
def test_a_rank_sends_as_often_as_its_program_does(name: str, p: int, m: int, v: int) -> None:
    schedule = table(name, p, m, v)
    for rank, program in enumerate(with_transfers(schedule)):
        assert sends(schedule, rank) == sum(isinstance(e, Transfer) and e.source == rank for e in program)


@given(p=st.integers(2, 6), k=st.integers(1, 5), v=st.integers(1, 4), data=st.data())
def test_any_legal_reordering_of_a_schedule_still_cannot_deadlock(p: int, k: int, v: int, data: st.DataObject) -> None:
    """Programs are derived from one global order, so whatever table finishes in lockstep finishes blocking."""
    schedule = [list(row) for row in interleaved(p, p * k, v)]
    row = schedule[data.draw(st.integers(0, p - 1))]
    i = data.draw(st.integers(0, len(row) - 2))
    row[i], row[i + 1] = row[i + 1], row[i]
    shuffled = tuple(map(tuple, schedule))
    try:
        list(rounds(shuffled))
    except ConfigError:
        return  # the swap broke a dependency and is rejected
    assert finishes_under_rendezvous(with_transfers(shuffled))


@pytest.mark.parametrize("name", [*SCHEDULE_NAMES, "zb-turns"])
def test_who_holds_a_stage_of_a_named_schedule_is_what_its_table_says(name: ScheduleName) -> None:
    kinds = {"interleaved": (1, 2, 3), "zb-v": (2,), "zb-turns": (2,)}
    for p, chunks in itertools.product(range(2, 8), kinds.get(name, (1,))):
        assert stages_of_named(name, p, chunks) == stages_of_ranks(table(name, p, p, chunks))


HEADS = (1, 4, 8, 16)  # eighths of a stage


def seconds_of_heads(schedule: Schedule, head: int, *, alone: bool) -> float:
    """Return the seconds of a table whose last stage is the head alone, or layers and the head; layers take 8."""
    last = last_stage(schedule)
    return simulate(schedule, lambda a: head + 8 * (not alone) if a.stage == last else 8).duration


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("p", range(2, 9))
def test_heads_in_turns_go_round_and_a_rank_holds_one_and_two_activations_more_than_in_zb_v(p: int, head: int) -> None:
    for m in (1, p, 2 * p + 1, 6 * p):
        turns = make_schedule("zb-turns", pipeline=p, micro_batches=m, chunks=2, head=head)
        for rank, row in enumerate(turns):
            heads = [a for a in row if a.stage == 2 * p]
            assert {a.micro_batch for a in heads} == {n for n in range(m) if (n + 1) % p == rank}
            assert largest_held(tuple(a for a in row if a.stage < 2 * p)) <= 2 * p + 2
            assert len(heads) == 0 or largest_held(tuple(heads)) == 1


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("p", range(2, 9))
def test_heads_in_turns_leave_every_rank_about_the_same_work_and_little_waiting(p: int, head: int) -> None:
    """In a long step ranks are idle for less than a twentieth; in ZB-V the others wait for the rank with the head."""
    m = 8 * p
    turns = make_schedule("zb-turns", pipeline=p, micro_batches=m, chunks=2, head=head)
    work = 3 * m * (2 * p * 8 + head) / p
    took = seconds_of_heads(turns, head, alone=True)
    assert work <= took < 20 / 19 * work
    assert took < seconds_of_heads(zero_bubble_v(p, m), head, alone=False)


def test_the_length_of_the_head_is_its_share_of_a_stage() -> None:
    def eighths(**model: int) -> int:
        shape = small(pipeline=2, model={"layers": 4, "hidden": 256, "heads": 4, **model}).model
        return head_length(shape, 4)

    # A layer of hidden 256 has about 12 x 256² weights, a head 256 for each word of the vocabulary.
    assert eighths(vocabulary=12 * 256) == 8
    assert eighths(vocabulary=6 * 256) == 4
    assert eighths(vocabulary=12 * 256, layers=8) == 4
    assert eighths(vocabulary=2) == 1


def largest_held(row: Row) -> int:
    """Return the most stage activations that a rank holds at once."""
    return max(map(sum, peak_counts_of(row)))


def test_gpipe_holds_every_activation_and_1f1b_at_most_one_per_rank_behind() -> None:
    for p, m in itertools.product(range(1, 9), range(1, 20)):
        assert [largest_held(r) for r in gpipe(p, m)] == [m] * p
        assert [largest_held(r) for r in one_forward_one_backward(p, m)] == [min(m, p - r) for r in range(p)]


@pytest.mark.parametrize("p", range(1, 7))
def test_zero_bubble_schedules_hold_no_more_than_1f1b_and_idle_for_p_minus_1(p: int) -> None:
    """With F = I = W = 1, both leave (p - 1) idle on each rank, where 1F1B leaves 3 (p - 1)."""
    for m in (2 * p, 2 * p + 3):
        h1 = zero_bubble_h1(p, m)
        assert max(map(largest_held, h1)) == p
        assert unit_seconds(h1) == 3 * m + p - 1
        assert unit_seconds(one_forward_one_backward(p, m)) == 3 * m + 3 * (p - 1)
        if p > 1:
            v = zero_bubble_v(p, m)
            assert set(map(largest_held, v)) == {2 * p}  # chunks are half as large, so this equals 1F1B's p
            assert unit_seconds(v) == 6 * m + p - 1


@pytest.mark.parametrize("p", range(1, 7))
def test_1f1b_in_two_parts_holds_what_1f1b_holds_and_idles_for_2_p_minus_1(p: int) -> None:
    """F = I = W = 1. The drain no longer waits for weight gradients."""
    for m in (2 * p, 2 * p + 3):
        split, whole = table("1f1b-split", p, m, 1), one_forward_one_backward(p, m)
        assert [largest_held(row) for row in split] == [largest_held(row) for row in whole]
        assert unit_seconds(split) == 3 * m + 2 * (p - 1)


def test_1f1b_in_two_parts_is_the_order_of_1f1b() -> None:
    assert render(table("1f1b-split", 2, 3, 1)).splitlines() == [
        "rank 0: F0.0 F1.0 I0.0 W0.0 F2.0 I1.0 W1.0 I2.0 W2.0",
        "rank 1: F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F2.1 I2.1 W2.1",
    ]


def unit_seconds(schedule: Schedule) -> int:
    """Return the duration if F, I and W take 1 and B takes 2."""
    last, split = last_stage(schedule), is_split(schedule)
    rank_of = {a: r for r, row in enumerate(schedule) for a in row}
    end: dict[Action, int] = {}
    free = [0] * len(schedule)
    for action in itertools.chain.from_iterable(rounds(schedule)):
        rank = rank_of[action]
        start = max([free[rank], *(end[i] for i in inputs(action, last, split=split))])
        end[action] = free[rank] = start + (2 if action.op is Op.BACKWARD else 1)
    return max(end.values())


def test_a_v_shaped_schedule_has_both_ends_of_the_model_on_rank_0() -> None:
    assert stages_of_ranks(zero_bubble_v(3, 6)) == ((0, 5), (1, 4), (2, 3))


def test_stages_of_an_interleaved_schedule_go_round_the_ranks() -> None:
    assert stages_of_ranks(interleaved(3, 3, 2)) == ((0, 3), (1, 4), (2, 5))


def test_a_schedule_that_cannot_finish_is_refused_naming_where_each_rank_is_stuck() -> None:
    wrong = ((backward(0, 0), forward(0, 0)), (forward(0, 1), backward(0, 1)))
    with pytest.raises(ConfigError, match=r"rank 0 at B0\.0, rank 1 at F0\.1"):
        list(rounds(wrong))


def test_interleaving_refuses_micro_batches_that_are_no_multiple_of_the_pipeline() -> None:
    with pytest.raises(ConfigError, match=r"\(5\).*\(2\)"):
        interleaved(2, 5, 2)


def test_a_rendered_schedule_reads_as_in_the_papers() -> None:
    assert render(one_forward_one_backward(2, 3)).splitlines() == [
        "rank 0: F0.0 F1.0 B0.0 F2.0 B1.0 B2.0",
        "rank 1: F0.1 B0.1 F1.1 B1.1 F2.1 B2.1",
    ]


def finishes_under_rendezvous(program: Program) -> bool:
    """Return whether a program finishes if sends block until received. An action's inputs must precede it."""
    schedule = tuple(tuple(e for e in row if isinstance(e, Action)) for row in program)
    last, split = last_stage(schedule), is_split(schedule)
    position = [0] * len(program)
    have: list[set[Action]] = [set() for _ in program]

    def current(rank: int) -> Event | None:
        return program[rank][position[rank]] if position[rank] < len(program[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(program)):
            event = current(rank)
            if isinstance(event, Transfer):
                other = event.target if rank == event.source else event.source
                if current(other) == event:
                    assert event.produced_by in have[event.source], f"{event} sends what is not there"
                    have[event.target].add(event.produced_by)
                    position[rank] += 1
                    position[other] += 1
                    moved = True
            elif event is not None:
                missing = [i for i in inputs(event, last, split=split) if i not in have[rank]]
                assert missing == [], f"rank {rank} starts {event} without {missing}"
                have[rank].add(event)
                position[rank] += 1
                moved = True
    return all(p == len(row) for p, row in zip(position, program))


def test_the_rendezvous_check_itself_can_fail() -> None:
    a, b = forward(0, 0), Action(Op.BACKWARD, 0, 1)
    x, y = Transfer(0, 1, a), Transfer(1, 0, b)
    crossed = ((a, x, y), (forward(0, 1), b, y, x))
    with pytest.raises(AssertionError):
        assert finishes_under_rendezvous(crossed)


def given(rows: list[str], **more: object) -> list[str]:
    tree = small(pipeline=2, batch={"sequences": 4, "micro": 2}).model_dump()
    return Plan(**{**tree, "schedule": "given", "rows": rows, **more}).check()


def test_a_given_table_is_run_as_it_is() -> None:
    rows = render(one_forward_one_backward(2, 2)).splitlines()
    assert parse_schedule(rows) == one_forward_one_backward(2, 2)
    assert given(rows) == []
    assert given(render(zero_bubble_h1(2, 2)).splitlines()) == []


@pytest.mark.parametrize(
    ("rows", "law"),
    [
        (["F0.0 F1.0 B0.0 B1.0"], "has 1 rows"),
        (["F0.0 F1.0 B0.0", "F0.1 B0.1 F1.1 B1.1"], "lacks B1.0"),
        (["F0.0 F1.0 B0.0 B1.0 B1.0", "F0.1 B0.1 F1.1 B1.1"], "more than once B1.0"),
        (["F0.0 F1.0 B0.0 B1.0 F2.0", "F0.1 B0.1 F1.1 B1.1"], "beyond what the plan asks, F2.0"),
        (["F0.0 B0.0 F1.0 B1.0", "F1.1 B1.1 F0.1 B0.1"], "deadlocks"),
        (["F0.0 F1.1 B1.1 B0.0", "F1.0 F0.1 B0.1 B1.0"], "puts one stage on several ranks"),
        (["F0.0 F1.0 F0.1 F1.1 B0.1 B0.0 B1.1 B1.0", ""], "gives pipeline rank 1 no action"),
        (["F0.0 F1.0 B0.0 X1.0", "F0.1 B0.1 F1.1 B1.1"], "'X1.0' is not an action"),
    ],
)
def test_a_given_table_that_cannot_run_is_refused_with_the_reason(rows: list[str], law: str) -> None:
    assert law in "\n".join(given(rows))
