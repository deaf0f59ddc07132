"""Laws of quarantine: every bad thing is set aside with its reason and place, and everything adds up."""

import subprocess
import sys

import pytest

from corpus.bad_files import LIMIT, bad_files
from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Damage, Document, Trouble
from trivium.corpus.read.read import read_any
from trivium.seeds import generator_for

LIMITS = ReadConfig(longest_bytes=LIMIT)
BAD = bad_files()
MOST_MEMORY = 1536 << 20


def read(path):
    return list(read_any(path, source="s", limits=LIMITS))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_file_is_set_aside_for_its_reason_and_its_sound_part_is_kept(tmp_path, bad):
    path = tmp_path / bad.name
    path.write_bytes(bad.data)
    found = read(path)
    damage = [one for one in found if isinstance(one, Damage)]
    documents = [one for one in found if isinstance(one, Document)]
    assert bad.trouble in {one.trouble for one in damage}, damage
    assert all(0 <= one.offset <= len(bad.data) and one.detail and one.path == path for one in damage)
    assert len(documents) == bad.documents or (bad.documents == -1 and documents)
    for document in documents:
        document.text.encode()


def test_there_are_sixty_bad_files_and_every_trouble_has_one(tmp_path):
    assert len(BAD) >= 60
    # a file that cannot be opened is no bytes on disk: it is absent
    absent = read(tmp_path / "absent.jsonl")
    assert {bad.trouble for bad in BAD} | {one.trouble for one in absent} == set(Trouble)


def test_an_offset_leads_to_the_damage(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n\nno json\n{"text": "two"}\n')
    (damage,) = (one for one in read(path) if isinstance(one, Damage))
    assert path.read_bytes()[damage.offset :].startswith(b"no json")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.warc", "a.warc.gz", "a.parquet", "a.jsonl.zst"])
def test_fuzzed_files_never_crash_and_always_give_something(tmp_path, name):
    """Each whole file and each bad one of this kind, with random bytes changed, removed and put in."""
    seeds = [bad.data for bad in BAD if bad.name.endswith(name[1:]) and 0 < len(bad.data) < 1 << 16]
    generator = generator_for(1, "quarantine-fuzz", name)
    path = tmp_path / name
    for number in range(200):
        data = bytearray(seeds[number % len(seeds)])
        for _ in range(int(generator.integers(1, 6))):
            place = int(generator.integers(len(data) + 1))
            change = generator.integers(3)
            if change == 0:
                del data[place : place + int(generator.integers(1, 40))]
            else:
                data[place : place + int(change == 1)] = generator.bytes(int(generator.integers(1, 9)))
        path.write_bytes(bytes(data))
        assert read(path), number


@pytest.mark.broad
def test_memory_stays_bounded_whatever_is_read(tmp_path):
    for bad in BAD:
        (tmp_path / bad.name).write_bytes(bad.data)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from trivium.corpus.read.files import input_files\nfrom trivium.corpus.read.read import read_any\n"
        "for path in input_files(Path(sys.argv[1])):\n    for _ in read_any(path, source='s'): pass\n"
        # What getrusage says begins with the memory of the process that this one was made of.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(int(status['VmHWM'].split()[0]) * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST_MEMORY
