import pytest

from trivium.tokens.config import TokensConfig


@pytest.mark.parametrize(("vocabulary", "dtype"), [(2048, "uint16"), (65499, "uint16"), (65500, "int32")])
def test_shards_use_two_bytes_if_ids_fit(vocabulary, dtype):
    assert TokensConfig().shard_dtype(vocabulary) == dtype


def test_configured_dtype_is_used():
    assert TokensConfig(dtype="int32").shard_dtype(300) == "int32"
