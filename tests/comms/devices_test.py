"""An accelerator for each rank or for none, wherever the ranks are, unless ranks may share one."""

from types import SimpleNamespace

import pytest
import torch

from trivium.comms.devices import (
    MAX_LISTED_HOSTS,
    Taken,
    environment_of_gpus,
    environment_of_shared,
    identity,
    lacking,
    problem_of,
    wrong_in,
)
from trivium.errors import ConfigError, TriviumError


def host(name: str, ranks: int, accelerators: int) -> list[Taken]:
    """Ranks that number the accelerators of their host in turn, as they do where all see the same."""
    return [Taken(name, f"GPU-{name}-{n % accelerators}" if accelerators else "") for n in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        (host("a", 8, 8) + host("b", 8, 8), True),
        (host("a", 8, 8) + host("b", 8, 8), False),
        (host("a", 8, 8) + host("b", 4, 4), True),
        (host("a", 8, 0) + host("b", 8, 0), False),
    ],
)
def test_ranks_fit_together_where_each_has_an_accelerator_of_its_own_or_none_has(ranks, wanted) -> None:
    assert problem_of(ranks, wanted=wanted) is None


@pytest.mark.parametrize("wanted", [True, False])
def test_hosts_that_differ_are_named_and_may_be_tried_again(wanted: bool) -> None:
    ranks = host("a", 8, 8) + host("b", 8, 0) + host("c", 8, 7) + host("d", 8, 8)
    wrong = problem_of(ranks, wanted=wanted)
    assert wrong is not None and wrong.exit_code == TriviumError.exit_code
    assert str(wrong).startswith("b has 0 GPUs for 8 ranks, c has 7 GPUs for 8 ranks: ")
    assert ("TRIVIUM_DEVICES=accelerators" in str(wrong)) == wanted


def test_where_accelerators_are_wanted_a_host_with_too_few_may_be_tried_again() -> None:
    for found, told in ((0, "a has 0 GPUs for 8 ranks"), (7, "a has 7 GPUs for 8 ranks")):
        for wrong in (lacking("a", found, 8), problem_of(host("a", 8, found), wanted=True)):
            assert wrong is not None and wrong.exit_code == TriviumError.exit_code and told in str(wrong)
    assert lacking("a", 8, 8) is None and lacking("a", 8, 4) is None


def test_more_ranks_than_accelerators_on_every_host_are_a_wrong_request() -> None:
    for ranks in (host("a", 4, 2), host("a", 4, 2) + host("b", 4, 2)):
        wrong = problem_of(ranks, wanted=False)
        assert isinstance(wrong, ConfigError)
        assert "4 ranks on a host with 2 GPUs" in str(wrong) and "--nproc-per-node 2" in str(wrong)


SHARE = "set TRIVIUM_DEVICES=shared"


@pytest.mark.parametrize("wanted", [True, False])
def test_ranks_that_share_an_accelerator_are_refused_and_told_how_they_may(wanted: bool) -> None:
    ranks = host("a", 8, 1) + host("b", 8, 3)
    assert SHARE in str(problem_of(ranks, wanted=wanted))
    assert problem_of(ranks, wanted=False, shared=True) is None
    assert SHARE in str(lacking("a", 1, 8)) and lacking("a", 1, 8, shared=True) is None


def test_sharing_is_no_remedy_where_a_host_has_no_accelerator() -> None:
    for ranks in (host("a", 8, 8) + host("b", 8, 0), host("a", 8, 0)):
        assert SHARE not in str(problem_of(ranks, wanted=True))
        wrong = str(problem_of(ranks, wanted=False, shared=True))
        assert "0 GPUs for 8 ranks" in wrong and "TRIVIUM_DEVICES=shared requires one" in wrong
        assert SHARE not in wrong
    assert "a has 0 GPUs for 2 ranks" in str(lacking("a", 0, 2, shared=True))


@pytest.mark.parametrize("version", [(2, 18, 5), (2, 28, 9), (2, 29)])
def test_nccl_before_2_30_takes_ranks_on_one_gpu_for_hosts_that_talk_over_sockets(version: tuple[int, ...]) -> None:
    for rank in (0, 7):
        assert environment_of_shared(version, rank, hosts=1) == {
            "NCCL_HOSTID": f"trivium-rank-{rank}",
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MAX_CTAS": "2",
        }
    assert "NCCL_SOCKET_IFNAME" not in environment_of_shared(version, 0, hosts=2), "lo leads to no other host"


@pytest.mark.parametrize("version", [(2, 30), (2, 30, 7), (2, 32, 3), (3, 0, 0)])
def test_nccl_from_2_30_on_is_asked_to_let_ranks_share(version: tuple[int, ...]) -> None:
    found = environment_of_shared(version, 3, hosts=1)
    assert found == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}


def test_of_thousands_of_hosts_some_are_named() -> None:
    ranks = host("well", 8, 8) + [each for n in range(280) for each in host(f"h{n}", 8, 0)]
    wrong = str(problem_of(ranks, wanted=True))
    assert "h7 has 0 GPUs" in wrong and "h8" not in wrong and "272 more hosts have too few" in wrong


def test_a_rank_says_what_it_takes_and_one_that_does_not_choose_says_nothing() -> None:
    ranks = host("a", 2, 2) + host("b", 2, 0)
    said = [each.words for each in ranks]
    assert [Taken.of(words) for words in said] == ranks
    assert str(wrong_in(said, wanted=False)) == str(problem_of(ranks, wanted=False))
    assert wrong_in(["", ""], wanted=True) is None


def test_an_accelerator_is_known_by_its_uuid_and_else_by_its_number_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sees(number: int, **properties: str) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))

    first = torch.device("cuda", 0)
    sees(1, uuid="1234")
    assert identity(first, 0) == identity(first, 5) == "1234"
    sees(2)
    assert identity(first, 0) == identity(first, 5) != identity(torch.device("cuda", 1), 0)
    sees(1)
    assert identity(first, 0) != identity(first, 5), "Slurm may show each rank another one as the first"
    assert identity(torch.device("cpu"), 0) == ""


@pytest.mark.parametrize("hosts", [MAX_LISTED_HOSTS - 1, MAX_LISTED_HOSTS])
def test_if_every_host_is_named_no_others_are_counted(hosts: int) -> None:
    ranks = host("well", 8, 8) + [each for n in range(hosts) for each in host(f"h{n}", 8, 0)]
    wrong = str(problem_of(ranks, wanted=True))
    assert f"h{hosts - 1} has 0 GPUs" in wrong and "more hosts" not in wrong


def test_ranks_on_gpus_record_their_messages_where_the_caller_keeps_them() -> None:
    alone, recorded = environment_of_gpus(None), environment_of_gpus("run/messages-of-rank-")
    assert alone == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert recorded["TORCH_FR_DUMP_TEMP_FILE"] == "run/messages-of-rank-"
    assert recorded["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1" and int(recorded["TORCH_FR_BUFFER_SIZE"]) > 0
