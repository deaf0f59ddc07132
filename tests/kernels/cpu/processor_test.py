"""The processor's maker is read where the system says it, and decides the same each time."""

import pytest

from trivium import mkl as mkl_choice
from trivium.kernels.cpu import processor
from trivium.kernels.cpu.processor import MKL_MAKER, is_intel


@pytest.fixture(autouse=True)
def mkl(monkeypatch) -> list[bool]:
    """Whether torch has it."""
    has = [True]
    monkeypatch.setattr(processor.torch.backends.mkl, "is_available", lambda: has[0])
    return has


@pytest.mark.parametrize(
    ("said", "home"),
    [
        (f"processor\t: 0\nvendor_id\t: {MKL_MAKER}\n", True),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", False),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", False),
        ("", False),
    ],
)
def test_it_is_at_home_on_its_makers_processors(said: str, home: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mkl_choice, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(said)
    assert processor._find() is home


def test_it_is_found_once(monkeypatch) -> None:
    found = is_intel()
    monkeypatch.setattr(processor, "_find", lambda: not found)
    assert is_intel() is found


def test_without_mkl_it_is_nowhere_at_home(mkl, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mkl_choice, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(MKL_MAKER)
    mkl[0] = False
    assert not processor._find()


@pytest.mark.parametrize(
    ("vendor", "model", "instruction", "tiles", "slow"),
    [
        (MKL_MAKER, 207, True, False, True),  # a virtual machine hides the tiles
        (MKL_MAKER, 207, True, True, False),
        (MKL_MAKER, 106, False, False, True),
        (MKL_MAKER, 85, True, False, False),
        (MKL_MAKER, 85, False, False, True),
        ("AuthenticAMD", 17, True, False, False),
        ("AuthenticAMD", 1, False, False, True),
    ],
)
def test_bf16_is_slow_without_an_instruction_or_where_tiles_are_hidden(
    vendor, model, instruction, tiles, slow, mkl, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(mkl_choice, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor, "_TILES", tiles)
    monkeypatch.setattr(processor.torch.cpu, "_is_avx512_bf16_supported", lambda: instruction)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel\t\t: {model}\nmodel name\t: 85\n")
    assert processor._find_slow_bf16() is slow
    mkl[0] = False  # no x86
    assert not processor._find_slow_bf16()


@pytest.mark.parametrize("reason", ["_IS_INTEL", "_WITHOUT_AVX512", "_FAST_KERNELS", None])
def test_each_reason_alone_makes_mkl_the_faster(reason: str | None, monkeypatch) -> None:
    for name in ("_IS_INTEL", "_WITHOUT_AVX512", "_FAST_KERNELS"):
        monkeypatch.setattr(processor, name, name == reason)
    assert processor.mkl_multiplies_faster() is (reason is not None)


def test_where_there_is_no_such_file_the_platform_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mkl_choice, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(mkl_choice.platform, "processor", lambda: f"Intel64 Family 6, {MKL_MAKER}")
    assert processor._find()
