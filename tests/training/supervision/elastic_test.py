"""A job on two hosts of their own network loses one, continues on the other in another layout, and takes it back."""

import pytest

from chaos.cluster import CAN_BE_MADE, Cluster
from chaos.hosts import Scene, elastic
from chaos.scene import Tally, write_tokens
from trivium.progress import silent
from trivium.provenance import STAMP, describe, write_json

pytestmark = [
    pytest.mark.broad,
    pytest.mark.skipif(not CAN_BE_MADE, reason="network namespaces need root and ip (iproute2)"),
]


def test_survivor_continues_in_another_layout_and_takes_a_returning_host_back(tmp_path) -> None:
    tokens = write_tokens(tmp_path)
    write_json(tokens / STAMP, describe(verb="tokenize", config={}, inputs={}))
    cluster, tally = Cluster(2, tmp_path), Tally(1, silent)
    try:
        found = elastic(Scene(tmp_path / "elastic", tokens, cluster, "1:2"), tally, 1, seed=11, kinds_of_harm=["kill"])
    finally:
        cluster.end()
    assert tally.losses == []
    assert found["layouts"] == {"data 2": 2, "one rank": 1} and found["returns"] == 1, found
