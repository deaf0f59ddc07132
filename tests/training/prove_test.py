from plans import small
from trivium.training.prove import another_layout


def test_a_plan_whose_rows_are_given_is_proved_under_a_named_schedule():
    rows = tuple(" ".join(f"{op}{m}.{stage}" for op in "FB" for m in range(4)) for stage in (0, 1))
    given = small(
        model={"layers": 2}, pipeline=2, schedule="given", rows=rows, batch={"sequences": 8, "micro": 2}
    )
    assert given.check() == []
    other = another_layout(given)
    assert other.check() == [] and other.layout != given.layout and other.schedule != "given"
