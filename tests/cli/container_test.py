"""The memory that control groups (version 1 or 2) leave a container or job, from files as the kernel writes them."""

from pathlib import Path

import pytest

from trivium.cli.machine import UNLIMITED, cores_allowed, memory_left

NONE = "9223372036854771712"  # how version 1 writes that there is no limit of memory


def group(at: Path, limit: str, used: int, idle: int) -> None:
    at.mkdir(parents=True, exist_ok=True)
    (at / "memory.max").write_text(f"{limit}\n")
    (at / "memory.current").write_text(f"{used}\n")
    (at / "memory.stat").write_text(f"anon 1\nfile {idle}\ninactive_file {idle}\nactive_file 0\n")


@pytest.mark.parametrize("name", ["0::/", "0::/host/docker-1.scope", "9:memory:/x", ""])
def test_a_container_full_of_files_that_were_written_has_its_memory_left(tmp_path: Path, name: str):
    """Control groups count the pages of written files as used. A group's name on the host does not exist inside."""
    group(tmp_path / "groups", str(4 << 30), 4 << 30, 3 << 30)
    (tmp_path / "own").write_text(f"{name}\n")
    assert memory_left(tmp_path / "groups", tmp_path / "own") == 3 << 30


def test_a_job_has_what_the_groups_around_it_leave_too(tmp_path: Path):
    groups = tmp_path / "groups"
    group(groups / "slurm" / "job_7", "max", 0, 0)
    group(groups / "slurm", "1000", 400, 100)
    (tmp_path / "own").write_text("0::/slurm/job_7\n")
    assert memory_left(groups, tmp_path / "own") == 700
    group(groups / "slurm" / "job_7", "500", 600, 0)
    assert memory_left(groups, tmp_path / "own") == 0


def group_of_version_1(at: Path, limit: str, used: int, idle: int) -> None:
    at.mkdir(parents=True, exist_ok=True)
    (at / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (at / "memory.usage_in_bytes").write_text(f"{used}\n")
    (at / "memory.stat").write_text(f"inactive_file 0\ntotal_rss 1\ntotal_inactive_file {idle}\n")


@pytest.mark.parametrize("name", ["4:memory:/job_7", "4:memory:/host/docker-1", "11:hugetlb,memory:/", ""])
def test_version_1_has_a_tree_for_memory_alone(tmp_path: Path, name: str):
    groups, own = tmp_path / "groups", tmp_path / "own"
    own.write_text(f"{name}\n2:cpuacct:/\n0::/\n")
    group_of_version_1(groups / "memory", "1000", 700, 200)
    assert memory_left(groups, own) == 500
    group_of_version_1(groups / "memory" / "job_7", NONE, 700, 0)
    assert memory_left(groups, own) == 500
    group_of_version_1(groups / "memory", NONE, 700, 200)
    assert memory_left(groups, own) == UNLIMITED


def test_a_machine_without_control_groups_limits_nothing(tmp_path: Path):
    assert memory_left(tmp_path, tmp_path / "none") == UNLIMITED == cores_allowed(tmp_path, tmp_path / "none")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, UNLIMITED),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, UNLIMITED),
        ({"job/cpu.max": "200000 100000", "cpu.max": "max 100000"}, 2),
    ],
    ids=str,
)
def test_a_share_of_the_cores_is_counted_in_whole_ones(tmp_path: Path, files: dict[str, str], cores: int):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text("3:cpu,cpuacct:/docker/7\n0::/job\n")
    assert cores_allowed(tmp_path, tmp_path / "own") == cores
