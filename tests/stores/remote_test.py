"""Objects at URLs: what is written is there whole, and of several writers of a new name one succeeds."""

import pytest

from trivium.errors import DataError, MachineError
from trivium.stores import requests
from trivium.stores.remote import Remote


@pytest.fixture(params=["s3", "memory"])
def folder(request):
    return request.getfixturevalue("bucket") if request.param == "s3" else Remote("memory://bucket/remote-test")


def test_objects_are_written_listed_read_in_ranges_and_deleted(folder):
    assert folder.sizes() == {} and (folder / "a").size() is None
    (folder / "a").write(b"0123456789")
    (folder / "inner" / "b").write(b"1")
    assert folder.sizes() == {"a": 10} and folder.folders() == [folder / "inner"]
    assert (folder / "a").read() == b"0123456789" and (folder / "a").read(2, 5) == b"234"
    folder.delete(["a", "gone"])
    assert folder.sizes() == {}
    with pytest.raises(FileNotFoundError, match="bucket.*a does not exist"):
        (folder / "a").read()


def test_a_new_name_is_given_to_one_writer(folder):
    assert (folder / "new").create(b"mine")
    assert not (folder / "new").create(b"theirs")
    assert (folder / "new").read() == b"mine"
    folder.delete(["new"])


@pytest.mark.parametrize("fault", [503, "lost"])
def test_a_write_that_fails_once_is_repeated_and_one_that_was_kept_counts_as_written(store, bucket, fault):
    store.put_faults = [fault]
    assert (bucket / "new").create(b"mine") and (bucket / "new").read() == b"mine"


def test_no_error_shows_a_credential(store, bucket, monkeypatch):
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    told = []
    for faults, error in (([403], DataError), ([503] * 9, MachineError)):
        store.put_faults = faults
        with pytest.raises(error) as caught:
            (bucket / "x").write(b"1")
        told.append(str(caught.value))
    assert all(each.startswith("s3://bucket/run/x cannot be written: ") for each in told)
    assert not any(word in each for word in ("KEYNAME", "SECRETWORD") for each in told)
    assert str(Remote("s3://user:word@bucket/run")) == "s3://***@bucket/run"
