"""The report knows the machine that trained, or says that it does not."""

import pytest

from trivium.cli.report import _machine_of
from trivium.cli.run_config import Given, resolve
from trivium.config import to_tree


def trained(device, **layout):
    plan = to_tree(resolve(Given("demo")).plan)
    return {"plan": plan | {"layout": plan["layout"] | layout}, "device": device}


def test_cores_share_an_assumed_peak():
    found = _machine_of(trained("cpu"), "here")
    assert found["device"] == "CPU core" and found["assumed"] and found["price_per_hour"] is None
    assert found["peak_flops_per_second"] == found["devices"] * 64e9


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80 GB"),
        ("NVIDIA H200", "H200 SXM 141 GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
    ],
)
def test_gpus_are_found_by_the_name_that_torch_gives(name, device):
    found = _machine_of(trained(name, tensor=2, pipeline=1, data=1, chunks=1), "here")
    assert (found["device"], found["devices"], found["assumed"]) == (device, 2, False)


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "Tesla T4", "AMD Instinct MI300X"])
def test_other_gpus_have_no_peak(name):
    assert _machine_of(trained(name), "here") is None


def test_machine_of_the_config_takes_precedence():
    assert _machine_of(trained("NVIDIA H100 80GB HBM3"), "selene")["device"] == "A100 80 GB"
    assert _machine_of(None, "here") is None and _machine_of({"plan": None}, "here") is None
