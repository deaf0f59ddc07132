"""Kubernetes accepts the files for pods in each version from 1.26 on, and options reach the pods.

The schemas of jobs and services are Kubernetes' own; the fields of a JobSet around its jobs are those of the published
reference of jobset.x-k8s.io/v1alpha2.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trivium.cli import main as entry

VERSIONS = [f"1.{minor}" for minor in range(26, int(kubernetes_validate.latest_version().split(".")[1]) + 1)]


def accepted(files: list[Any]) -> None:
    for file in files:
        if file["kind"] == "JobSet":
            assert file.keys() == {"apiVersion", "kind", "metadata", "spec"}
            assert (file["apiVersion"], file["metadata"].keys()) == ("jobset.x-k8s.io/v1alpha2", {"name"})
            assert file["spec"].keys() <= {"network", "replicatedJobs"}
            network, (jobs,) = file["spec"].get("network", {}), file["spec"]["replicatedJobs"]
            fields = {"enableDNSHostnames": bool, "subdomain": str}
            assert all(type(value) is fields[name] for name, value in network.items())
            assert jobs.keys() <= {"name", "replicas", "template"} and jobs["template"].keys() == {"spec"}
            assert type(jobs.get("replicas", 1)) is int
            file = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": jobs["name"]}, **jobs["template"]}
        for version in VERSIONS:
            kubernetes_validate.validate(file, version, strict=True)


def printed(capsys, monkeypatch, target: str, *words: str, out: str = "/runs/a") -> str:
    given = [word for one in TWO_NODES for word in ("--set", one)]
    monkeypatch.setattr(
        sys, "argv", ["trivium", "launch", "--print", target, "--preset", "demo", "--out", out, *given, *words]
    )
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


TWO_NODES = ["plan.layout.tensor=8", "plan.layout.pipeline=2", "plan.layout.data=1", "plan.model.heads=8"]
TWO_NODES += ["machine=dgx-h100"]
OPTIONS = ["--node", "gpu=h200", "--node", "zone=a", "--tolerate", "nvidia.com/gpu", "--rdma", "8", "--shm", "64Gi"]


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
def test_elastic_pods_meet_in_the_run_directory_and_a_lost_one_is_replaced(capsys, monkeypatch, target) -> None:
    files = list(yaml.safe_load_all(printed(capsys, monkeypatch, target, "--hosts", "1:2", *OPTIONS)))
    assert [f["kind"] for f in files] == (["Job"] if target == "kubernetes" else ["JobSet"]), "no service is needed"
    accepted(files)
    spec = files[-1]["spec"] if target == "kubernetes" else files[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    *ignored, final = spec["podFailurePolicy"]["rules"]
    assert {rule["action"] for rule in ignored} == {"Ignore"}
    assert final["action"] == "FailJob" and 3 not in final["onExitCodes"]["values"], "a host that is left out ends so"
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and "subdomain" not in pod and pod["nodeSelector"]
    (container,) = pod["containers"]
    assert container["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert container["args"][0].rstrip().endswith(" --hosts 1:2") and "torchrun" not in container["args"][0]


def test_a_pod_on_another_node_is_no_longer_left_out(capsys, monkeypatch, tmp_path: Path) -> None:
    job = yaml.safe_load(printed(capsys, monkeypatch, "kubernetes", "--hosts", "1:2", out=str(tmp_path)))
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    (tmp_path / "python").write_text('#!/bin/bash\necho "$@"\nexit 3\n')
    (tmp_path / "python").chmod(0o755)
    mark = tmp_path / "hosts" / "pod-1.out"

    def is_left_out_on(node: str) -> bool:
        names = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OUT": str(tmp_path), "HOSTNAME": "pod-1", "NODE": node}
        ran = subprocess.run(["bash", "-c", script], env=names, capture_output=True, text=True)
        assert ran.returncode == 3 and ran.stdout.startswith("-m trivium.cli.main train ") and not ran.stderr
        return mark.exists()

    assert not is_left_out_on("a")
    mark.touch()
    assert [is_left_out_on(node) for node in ("a", "a", "b", "b")] == [True, True, False, False]


def test_the_longest_pod_name_of_a_jobset_has_at_most_63_characters(capsys, monkeypatch) -> None:
    """Its webhook adds the job, the greatest index of a pod and five letters to the name."""
    jobset = yaml.safe_load(printed(capsys, monkeypatch, "jobset", out=f"/runs/{'a' * 63}"))
    name = jobset["metadata"]["name"]
    assert len(f"{name}-ranks-0-1-abcde") == 63 and jobset["spec"]["network"]["subdomain"] == name
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert f"FIRST_ADDR={name}-ranks-0-0.{name}\n" in pod["containers"][0]["args"][0]


@pytest.mark.parametrize("target", ["kubernetes", "jobset"])
@pytest.mark.parametrize("options", [[], OPTIONS])
def test_kubernetes_accepts_the_files_and_options_reach_the_pod(capsys, monkeypatch, target, options) -> None:
    text = printed(capsys, monkeypatch, target, *options)
    assert "`kubectl replace --force -f`" in text.partition("\napiVersion")[0], "`apply` does not start it again"
    files = list(yaml.safe_load_all(text))
    assert [f["kind"] for f in files] == (["Service", "Job"] if target == "kubernetes" else ["JobSet"])
    accepted(files)
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


REFUSED = {
    "--node": ("h200", "a/b/c=1", "-a=b", "a=-b-", f"a={'b' * 64}", f"{'a' * 64}=b", "A.com/a=b", "a=b c", "=b"),
    "--tolerate": ("nvidia.com/gpu=present:NoSchedule", "bad key=", "", "/gpu", "nvidia.com/"),
    "--claim": ("Bad Claim_X", "", "a..b", "-a", "a" * 254),
    "--image": ("", "has space", " ", "/images/a.sif", "ghcr.io#me/trivium:1", "ghcr.io/me/Trivium:1", "a:b:c"),
    "--shm": ("64 GB", "Gi", "-1Gi"),
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in REFUSED for value in REFUSED[option]])
def test_a_value_that_kubernetes_would_refuse_is_refused_and_the_remedy_is_accepted(
    capsys, monkeypatch, option: str, value: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        printed(capsys, monkeypatch, "kubernetes", f"{option}={value}")
    message = str(refused.value).partition("\n")[0]
    assert f"{option} {value!r}: " in message
    remedy = message.partition("; give it as ")[2].split()
    assert remedy[0] == option
    printed(capsys, monkeypatch, "kubernetes", *remedy)


ACCEPTED = ["a.b/c_d.e=", f"{'a' * 63}={'b' * 63}", "9=A-b_c.d"]


@pytest.mark.parametrize("image", ["trivium", "a__b/c-d", "host:5000/a/b:V1.0_x", f"ghcr.io/a:1@sha256:{'0f' * 32}"])
def test_all_names_of_images_that_pods_may_have_are_accepted(capsys, monkeypatch, image: str) -> None:
    *_, job = yaml.safe_load_all(printed(capsys, monkeypatch, "kubernetes", "--image", image))
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == image
    assert "'/my files/a.sif'" in printed(capsys, monkeypatch, "slurm", "--image", "/my files/a.sif")


def test_all_labels_taints_and_claims_that_kubernetes_takes_are_accepted(capsys, monkeypatch) -> None:
    words = [f"--node={label}" for label in ACCEPTED] + ["--tolerate=a.b/c", "--claim=a-1.b"]
    *_, job = yaml.safe_load_all(printed(capsys, monkeypatch, "kubernetes", *words))
    labels = job["spec"]["template"]["spec"]["nodeSelector"]
    assert labels == dict(label.split("=") for label in ACCEPTED)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--node", "a=1", "--node", "b=1", "--node", "a=2"], "--node a: it is given 2 times"),
        (["--image", "a\nb"], "line break"),
        (["--out", "/dev/shm/a"], "give a folder elsewhere, as --out /runs/a"),
        (
            ["--out", "/dev/a"],
            "at /dev, where it would hide the image's own files; give a folder elsewhere, as --out /runs/a",
        ),
        (["--out", "/opt/trivium/runs/a"], "at /opt, where it would hide the image's own files"),
    ],
)
def test_what_only_a_whole_pod_shows_to_be_wrong_is_refused(capsys, monkeypatch, words, message) -> None:
    with pytest.raises(AssertionError, match=message):
        printed(capsys, monkeypatch, "kubernetes", *words)


ONLY_IN_PODS = ["--node=a=b", "--tolerate=a", "--rdma=1", "--shm=1Gi", "--claim=c"]


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
@pytest.mark.parametrize("word", [*ONLY_IN_PODS, "--image=i"])
def test_an_option_without_effect_on_a_file_is_refused(capsys, monkeypatch, target: str, word: str) -> None:
    if word in ONLY_IN_PODS or target == "torchrun":
        with pytest.raises(
            AssertionError, match=f"{word.partition('=')[0]} has no effect with --print {target}, only with"
        ):
            printed(capsys, monkeypatch, target, word)
    else:
        printed(capsys, monkeypatch, target, word)
