"""Laws of 8-bit numbers: all codes, all midpoints and the numbers next to them, and what is beyond the range."""

import pytest
import torch

from trivium.kernels.float8 import E4M3, E5M2, NAN, Format, decode, encode, rounded

FORMATS = [E4M3, E5M2]
ALL_CODES = torch.arange(256, dtype=torch.uint8)
IDS = ["e4m3", "e5m2"]


def finite_values(of: Format) -> torch.Tensor:
    """The finite values that are not negative, ascending."""
    return decode(ALL_CODES[: of.largest_code + 1], of, torch.float64)


def numbers(of: Format, dtype: torch.dtype) -> torch.Tensor:
    """Every value, every midpoint of two neighbours, the numbers of `dtype` right next to both, and their negatives."""
    values = finite_values(of)
    midpoints = (values[1:] + values[:-1]) / 2
    points = torch.cat([values, midpoints]).to(dtype)
    up, down = (torch.nextafter(points, torch.full_like(points, end)) for end in (torch.inf, -torch.inf))
    every = torch.cat([points, up, down])
    every = every[every.abs() <= of.largest]
    return torch.cat([every, -every])


@pytest.mark.parametrize("of", FORMATS, ids=IDS)
def test_all_256_codes_are_decoded_as_torch_and_ml_dtypes_do(of: Format) -> None:
    found = decode(ALL_CODES, of, torch.float64)
    assert torch.allclose(found, ALL_CODES.view(of.dtype).to(torch.float64), rtol=0, atol=0, equal_nan=True)
    assert int(found.isnan().sum()) == (2 if of is E4M3 else 6) and int(found.isinf().sum()) == (0 if of is E4M3 else 2)
    assert float(found[found.isfinite()].max()) == of.largest and float(found[found > 0].min()) == of.least
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = ALL_CODES.numpy().view(ml_dtypes.float8_e4m3fn if of is E4M3 else ml_dtypes.float8_e5m2)
    assert torch.allclose(found, torch.from_numpy(theirs.astype("float64")), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of", FORMATS, ids=IDS)
def test_codes_midpoints_and_neighbours_are_encoded_half_to_even(of: Format, dtype: torch.dtype) -> None:
    x = numbers(of, dtype)
    codes, values = encode(x, of), finite_values(of)
    distance = (x.double().abs().unsqueeze(1) - values).abs()
    nearest = distance == distance.amin(1, keepdim=True)
    even = torch.arange(len(values)) % 2 == 0
    tied = nearest.sum(1, keepdim=True) == 2
    assert int(tied.sum()) >= 2 * (len(values) - 1)
    expected = (nearest & (even | ~tied)).int().argmax(1) + 128 * torch.signbit(x)
    assert torch.equal(codes.long(), expected)
    if dtype == torch.float64:
        return  # torch and ml_dtypes round to fp32 first
    assert torch.equal(codes, x.to(of.dtype).view(torch.uint8))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = x.numpy().astype(ml_dtypes.float8_e4m3fn if of is E4M3 else ml_dtypes.float8_e5m2)
    assert torch.equal(codes, torch.from_numpy(theirs.view("uint8")))


@pytest.mark.parametrize("of", FORMATS, ids=IDS)
def test_the_last_bits_of_fp64_do_not_decide_which_number_a_midpoint_becomes(of: Format) -> None:
    values = finite_values(of)
    midpoints = ((values[1:] + values[:-1]) / 2).double()
    codes = rounded(midpoints, of).view(torch.uint8)
    assert torch.equal(codes, encode(midpoints, of))
    for factor in (1 - 2**-52, 1 + 2**-52):
        assert torch.equal(rounded(midpoints * factor, of).view(torch.uint8), codes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("of", FORMATS, ids=IDS)
def test_larger_numbers_get_the_largest_value_and_nan_stays_nan(of: Format, dtype: torch.dtype) -> None:
    given = [of.largest, 1.04 * of.largest, 1.5 * of.largest, 1e30, torch.inf]
    x = torch.tensor([*given, *[-n for n in given], torch.nan], dtype=dtype)
    expected = torch.tensor([of.largest_code] * 5 + [of.largest_code | 0x80] * 5, dtype=torch.uint8)
    codes = rounded(x, of).view(torch.uint8)
    assert torch.equal(codes[:-1], expected) and codes[-1] & 0x7F == NAN
    if dtype != torch.bfloat16:
        assert torch.equal(encode(x, of)[:-1], expected) and encode(x, of)[-1] == NAN


@pytest.mark.parametrize("of", FORMATS, ids=IDS)
def test_random_numbers_of_every_size_are_cast_as_torch_does_and_near_enough(of: Format) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20000, generator=generator) * 2.0 ** torch.randint(-24, 10, (20000,), generator=generator)
    x = x[x.abs() <= of.largest]
    codes = encode(x, of)
    assert torch.equal(codes, x.to(of.dtype).view(torch.uint8))
    away = (decode(codes, of) - x).abs()
    assert bool((away <= torch.maximum(x.abs() * 2.0 ** -(of.mantissa_bits + 1), torch.tensor(of.least / 2))).all())
    assert torch.equal(encode(decode(codes, of), of), codes)
