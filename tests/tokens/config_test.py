import pytest

from trivium.config import build
from trivium.errors import ConfigError
from trivium.tokens.config import TokensConfig


@pytest.mark.parametrize(("vocabulary", "dtype"), [(2048, "uint16"), (65499, "uint16"), (65500, "int32")])
def test_shards_use_two_bytes_if_ids_fit(vocabulary, dtype):
    assert TokensConfig().shard_dtype(vocabulary) == dtype


def test_configured_dtype_is_used():
    assert TokensConfig(dtype="int32").shard_dtype(300) == "int32"


@pytest.mark.parametrize("field", [{"vocabulary": 0}, {"validation_fraction": 0}, {"validation_fraction": 0.5}])
def test_invalid_values_are_rejected(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        build(TokensConfig, field)
