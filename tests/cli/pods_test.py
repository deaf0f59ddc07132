"""Job files for pods and containers have only fields that Kubernetes 1.26 and JobSet know, with values of their types.

The fields are those of the published API references of batch/v1 and core/v1 (1.26) and of jobset.x-k8s.io/v1alpha2.
"""

import sys
from typing import Any

import pytest
import yaml

from trivium.cli import main as entry

NAME, TEXT, COUNT = str, str, int
ANY: dict[str, Any] = {}
LIMITS = {"nvidia.com/gpu": COUNT, "rdma/ib": COUNT}
CONTAINER = {
    "name": NAME,
    "image": TEXT,
    "env": [{"name": TEXT, "value": TEXT}],
    "command": [TEXT],
    "args": [TEXT],
    "resources": {"limits": LIMITS},
    "securityContext": {"capabilities": {"add": [TEXT]}},
    "volumeMounts": [{"name": NAME, "mountPath": TEXT}],
}
POD = {
    "subdomain": NAME,
    "restartPolicy": TEXT,
    "nodeSelector": {"*": TEXT},
    "tolerations": [{"key": TEXT, "operator": TEXT}],
    "terminationGracePeriodSeconds": COUNT,
    "containers": [CONTAINER],
    "volumes": [
        {"name": NAME, "persistentVolumeClaim": {"claimName": TEXT}, "emptyDir": {"medium": TEXT, "sizeLimit": TEXT}}
    ],
}
EXIT_CODES = {"operator": TEXT, "values": [COUNT]}
RULE = {"action": TEXT, "onPodConditions": [{"type": TEXT, "status": TEXT}], "onExitCodes": EXIT_CODES}
JOB_SPEC = {
    "completionMode": TEXT,
    "completions": COUNT,
    "parallelism": COUNT,
    "backoffLimit": COUNT,
    "podFailurePolicy": {"rules": [RULE]},
    "template": {"spec": POD},
}
TOP = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"name": NAME}}
SERVICE = {"clusterIP": TEXT, "selector": {"*": TEXT}, "publishNotReadyAddresses": bool}
SCHEMAS = {
    "Service": {**TOP, "spec": SERVICE},
    "Job": {**TOP, "spec": JOB_SPEC},
    "JobSet": {
        **TOP,
        "spec": {
            "network": {"enableDNSHostnames": bool, "subdomain": NAME},
            "replicatedJobs": [{"name": NAME, "replicas": COUNT, "template": {"spec": JOB_SPEC}}],
        },
    },
}


def wrong(value: Any, schema: Any, at: str = "") -> list[str]:
    """The fields that a schema does not know, and those with a value of another type."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at} is {value!r}"]
        found = [f"{at}.{key} is unknown" for key in value if key not in schema and "*" not in schema]
        inner = [(key, schema.get(key, schema.get("*"))) for key in value]
        return found + [line for key, one in inner if one for line in wrong(value[key], one, f"{at}.{key}")]
    if isinstance(schema, list):
        lines = [wrong(one, schema[0], f"{at}[{n}]") for n, one in enumerate(value)]
        return [line for each in lines for line in each]
    return [] if type(value) is schema else [f"{at} is {value!r}"]


def printed(capsys, monkeypatch, target: str, *words: str) -> str:
    given = [word for one in TWO_NODES for word in ("--set", one)]
    monkeypatch.setattr(
        sys, "argv", ["trivium", "launch", "--print", target, "--preset", "demo", "--out", "/runs/a", *given, *words]
    )
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


TWO_NODES = ["plan.layout.tensor=8", "plan.layout.pipeline=2", "plan.layout.data=1", "plan.model.heads=8"]
TWO_NODES += ["machine=dgx-h100"]
OPTIONS = ["--node", "gpu=h200", "--node", "zone=a", "--tolerate", "nvidia.com/gpu", "--rdma", "8", "--shm", "64Gi"]


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
@pytest.mark.parametrize("options", [[], OPTIONS])
def test_only_known_fields_are_written_and_options_reach_the_pod(capsys, monkeypatch, target, options) -> None:
    files = list(yaml.safe_load_all(printed(capsys, monkeypatch, target, *options)))
    assert [f["kind"] for f in files] == (["Service", "Job"] if target == "kubernetes" else ["JobSet"])
    assert [line for file in files for line in wrong(file, SCHEMAS[file["kind"]])] == []
    spec = files[-1]["spec"] if target == "kubernetes" else files[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    host = "trivium-a-0.trivium-a" if target == "kubernetes" else "trivium-a-ranks-0-0.trivium-a"
    assert f"FIRST_ADDR={host}\n" in container["args"][0]
    if options:
        assert pod["nodeSelector"] == {"gpu": "h200", "zone": "a"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/ib": 8}
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}


def test_slurm_runs_an_image_by_pyxis_and_a_file_by_apptainer(capsys, monkeypatch) -> None:
    by_pyxis = printed(capsys, monkeypatch, "slurm", "--image", "ghcr.io#me/trivium:1")
    assert by_pyxis.count("--container-image='ghcr.io#me/trivium:1' --container-mounts=/runs:/runs ") == 2
    by_apptainer = printed(capsys, monkeypatch, "slurm", "--image", "/images/trivium.sif")
    assert by_apptainer.count("apptainer exec --nv --bind /runs /images/trivium.sif python ") == 2
    assert "container" not in printed(capsys, monkeypatch, "slurm").replace("--image runs them in a container", "")


@pytest.mark.parametrize(("words", "law"), [(["--node", "h200"], "KEY=VALUE"), (["--shm", "64 GB"], "as 64Gi")])
def test_a_label_or_size_that_kubernetes_would_refuse_is_refused(capsys, monkeypatch, words, law) -> None:
    with pytest.raises(AssertionError, match=law):
        printed(capsys, monkeypatch, "kubernetes", *words)
