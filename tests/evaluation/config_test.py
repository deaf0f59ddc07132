import pytest

from trivium.config import build
from trivium.errors import ConfigError
from trivium.evaluation.config import EvaluationConfig, IncontextConfig
from trivium.serving.config import GenerationConfig


@pytest.mark.parametrize(
    ("model", "tree", "path"),
    [
        (EvaluationConfig, {"tasks": ["boolq"]}, "tasks.0"),
        (EvaluationConfig, {"tasks": []}, "tasks"),
        (EvaluationConfig, {"shots": [0, -1]}, "shots.1"),
        (EvaluationConfig, {"confidence": 1.0}, "confidence"),
        # a study has no bootstrap, so the setting would change nothing
        (IncontextConfig, {"resamples": 7}, "resamples"),
        (GenerationConfig, {"prompts": []}, "prompts"),
        (GenerationConfig, {"sampling": {"top_p": 0}}, "sampling.top_p"),
        (GenerationConfig, {"sampling": {"temperature": -1}}, "sampling.temperature"),
    ],
)
def test_invalid_values_are_rejected_by_path(model, tree, path):
    with pytest.raises(ConfigError, match=path):
        build(model, tree)
