"""`trivium launch --print`: job files that place ranks on nodes, forward signals, and restart failed jobs."""

import json
import math
import re
import shlex
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from trivium.cli.options import DEFAULT_OUT, TRAINS_ON, Out, Preset, Ranks, Sets, Tokens, given_for, with_options_of
from trivium.cli.planned import planned
from trivium.cli.price import Gpus, dry_run_lines, machine_of
from trivium.cli.run_config import HERE, Given, RunConfig, is_machine_file, resolve
from trivium.cli.settings import App, shows
from trivium.cli.show import layout_text, say, say_aside
from trivium.cli.train import FINISHED, would
from trivium.config import leaves, parse_assignments, preset_files, preset_names, shipped
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError, MachineError
from trivium.hub import is_hub_name
from trivium.plan.mapping import problems
from trivium.provenance import STAMP

app = App()

MODULE = "trivium.cli.main train"
# Time between the save of all ranks and the end of the last one.
MARGIN_SECONDS = 20
# Fields with paths of files that a training reads. `machine` may be a path, too.
PATHS = ("plan.rows", "training.start_from", "training.evaluation.data")


# The comment in a file for torchrun that says how to start it, on one host and on several.
ON_ONE_HOST = """Start it on one host:
#   bash this-file"""
ON_HOSTS = """Start it on each of {} hosts, at about the same time:
#   FIRST_HOST=address-of-one-of-them bash this-file
# All hosts share {}."""
# Each host uses the address from which it reaches the first host.
ADDRESSES = """FIRST_ADDR=$(python -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))' "${FIRST_HOST:?}")
LOCAL_ADDR=$(python -c 'import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 1)); print(s.getsockname()[0])' "$FIRST_ADDR")
IS_FIRST=$([ "$LOCAL_ADDR" = "$FIRST_ADDR" ] && echo 1 || echo 0)
"""
RENDEZVOUS = (
    '--rdzv-backend c10d --rdzv-endpoint "$FIRST_ADDR:${{PORT:-29400}}" --rdzv-id {name} '
    '--rdzv-conf "is_host=$IS_FIRST,join_timeout={seconds}" --local-addr "$LOCAL_ADDR"'
)
ATTEMPTS = "attempts.sh"  # the part that the files for torchrun and Kubernetes share
RANKS_OF_SLURM, HOSTS_OF_SLURM = "slurm_ranks.sh", "slurm_hosts.sh"  # what Slurm starts, without and with --hosts
RANKS_OF_POD, HOSTS_OF_POD = "pod_ranks.sh", "pod_hosts.sh"  # what a pod starts, without and with --hosts
SERVICE = "service.yaml"  # by which the ranks find the first pod; hosts meet in the run directory
IN_POD = " " * 14  # indentation of a script in a Kubernetes file
# Makes a host whose GPUs have failed end the attempt instead of computing on its CPUs.
EXPECTS = """# A rank without its own GPU fails and is restarted; `any` lets hosts compute on their CPUs.
export TRIVIUM_DEVICES=${TRIVIUM_DEVICES:-accelerators}
"""
LOCKS_MEMORY = "          securityContext: {capabilities: {add: [IPC_LOCK]}}  # RDMA registers memory\n"
EXPECTS_IN_POD = """            # A rank without its own GPU fails and is restarted.
            - {name: TRIVIUM_DEVICES, value: accelerators}
"""
# Kubernetes replaces a pod only when it has ended, and the pod of a node that no longer answers does not end.
AGAIN = """# To start it again after it has ended: `kubectl replace --force -f`; `kubectl apply` would do nothing.
# If a node no longer answers: `kubectl delete node NAME`. Its pod is replaced only after that."""
LABEL = "{trivium: whole-node}"
LABELLED = f"    metadata: {{labels: {LABEL}}}\n"
# A node with GPUs has none left for a second pod. A request of all cores of a node would never fit, because the system
# reserves some of them.
ALONE_ON_A_NODE = f"""      affinity:  # a pod takes all cores of a node, so no second one with the label may run there
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {LABEL}}}}}
"""
NODE_IN_POD = "            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}\n"
# Every version labels pods so; the longer name exists from 1.27 on.
JOB_IN_POD = """            - {name: JOB, valueFrom: {fieldRef: {fieldPath: "metadata.labels['controller-uid']"}}}\n"""


UNNAMED = "REPLACE-ME"  # the image and the claim, where none is named


class Target(StrEnum):
    """The program that starts the ranks."""

    slurm = "slurm"
    kubernetes = "kubernetes"
    jobset = "jobset"
    torchrun = "torchrun"


FILES: Mapping[Target, str] = {
    Target.slurm: "slurm.sh",
    Target.kubernetes: "kubernetes.yaml",
    Target.jobset: "kubernetes.yaml",
    Target.torchrun: "torchrun.sh",
}


IN_PODS = (Target.kubernetes, Target.jobset)
# Folders of an image without which no rank starts.
IMAGE_FOLDERS = "bin boot dev etc lib lib32 lib64 libx32 opt proc root run sbin sys usr var".split()
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"(?=[^/]{1,253}(/|$))[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_KEY = rf"({_DOMAIN}/)?{_NAME}"
_OF_A_KEY = (
    "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, which a domain and '/' may "
    "precede"
)


class Law(NamedTuple):
    """The values that Kubernetes accepts for an option: a pattern, the same in words, and an example."""

    pattern: str
    words: str
    example: str


LAWS: Mapping[str, Law] = {
    "--node": Law(
        rf"{_KEY}=({_NAME})?",
        f"a label is KEY=VALUE, where KEY has {_OF_A_KEY}, and VALUE is such a text without a domain",
        "gpu=h200",
    ),
    "--tolerate": Law(_KEY, f"the key of a taint, without value and effect, has {_OF_A_KEY}", "nvidia.com/gpu"),
    "--claim": Law(
        f"{_DOMAIN}|{UNNAMED}",
        "the name of a claim has at most 253 small letters, digits, '-' and '.', with a letter or digit at both ends "
        "of each part",
        "runs",
    ),
    "--image": Law(r"\S+|.*\.sif", "the name of an image is not empty and has no blanks", "ghcr.io/me/trivium:1"),
    "--shm": Law(r"(\d+(Ki|Mi|Gi|Ti))?", "a size is a whole number with Ki, Mi, Gi or Ti", "64Gi"),
}


_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
# Pyxis also runs REGISTRY#NAME, and Apptainer files.
IMAGE_OF_PODS = Law(
    rf"(?a:([\w.-]+(:\d+)?/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?)|{UNNAMED}",
    "the name of an image of pods is REGISTRY/NAME:TAG, with small letters in NAME",
    "ghcr.io/me/trivium:1",
)


class Nodes(NamedTuple):
    """The placement of ranks: `per_node` on each of `nodes` nodes, on their own GPUs or on cores.

    fills_nodes: whether these are all devices of the nodes.
    """

    nodes: int
    per_node: int
    has_gpus: bool
    fills_nodes: bool = False


@dataclass(frozen=True)
class Asked:
    """The options of `launch`."""

    target: Annotated[Target, typer.Option("--print", help="The system that the job file is for.")]
    out: Out = DEFAULT_OUT
    preset: Preset = None
    gpus: Gpus = None
    sets: Sets = None
    ranks: Ranks = None
    tokens: Tokens = None
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="MIN:MAX",
            help="Slurm, Kubernetes: start on MAX nodes, and continue while MIN of them are left.",
        ),
    ] = None
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="NAME", help="The container's image; Slurm: Pyxis runs it, and Apptainer a .sif file."
        ),
    ] = UNNAMED
    claim: Annotated[
        str, typer.Option("--claim", metavar="NAME", help="Kubernetes: the claim of the shared volume.")
    ] = UNNAMED
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="KEY=VALUE", help="Kubernetes: a label that nodes must have; repeatable."),
    ] = None
    tolerate: Annotated[
        list[str] | None,
        typer.Option("--tolerate", metavar="KEY", help="Kubernetes: a taint that pods tolerate; repeatable."),
    ] = None
    rdma: Annotated[
        int, typer.Option("--rdma", min=0, metavar="N", help="Kubernetes: rdma/ib devices of a pod, with IPC_LOCK.")
    ] = 0
    shm: Annotated[
        str, typer.Option("--shm", metavar="SIZE", help="Kubernetes: limit of /dev/shm, as 64Gi; empty: none.")
    ] = ""


@app.command()
@shows("seed", "plan", "training", "machine")
@with_options_of(Asked)
def launch(asked: Asked) -> None:
    """Print a job file for a run: it places ranks on nodes, saves on a signal, and resumes after a failure.

    Nothing is started, and what `train` would refuse is refused. `machine` in the config gives the devices of a node.
    """
    out, preset, tokens = asked.out, asked.preset, asked.tokens
    if asked.target in IN_PODS:
        _refuse_what_no_pod_has(out, preset, tokens)
        for field, value in leaves(parse_assignments(asked.sets or (), RunConfig)):
            is_path = field in PATHS or (field == "machine" and is_machine_file(str(value)))
            if isinstance(value, str) and is_path and not is_hub_name(value):
                _check_path(f"--set {field}", value, out, between="=")
    else:
        _refuse_options_of_pods(asked)
    TRAINS_ON.check(asked.sets)
    given = planned(given_for(out, preset, asked.sets, asked.ranks), asked.gpus, out, say_aside)
    config = resolve(given).checked()
    if config.machine == HERE:
        machine = None
    else:
        machine = machine_of(config.machine)
    words = ["--out", str(out)]
    words += ["--preset", preset] if preset else []
    words += [word for each in given.assignments for word in ("--set", each)]
    words += ["--ranks", str(asked.ranks)] if asked.ranks else []
    words += ["--tokens", str(tokens)] if tokens else []
    words += ["--hosts", asked.hosts] if asked.hosts else []
    for word in (*words, asked.image):
        if not word.isprintable():
            raise ConfigError(f"{word!r} holds a line break or the like, which a job file cannot; write it otherwise")
    more = {"image": asked.image, "claim": asked.claim, "arguments": shlex.join(words), **pod_values(asked)}
    more["hosts"] = asked.hosts or ""
    if asked.hosts is not None:
        _refuse_hosts(asked.hosts, asked.target, config, placed(config, machine))
    text = job_file(asked.target, config, machine, out, more)
    _refuse_what_train_would(out, given, tokens)
    say(text)


def pod_values(asked: Asked) -> dict[str, str]:
    """Return the lines of a pod that the options ask for. Raises ConfigError for values that Kubernetes refuses."""
    given = {
        "--node": asked.node or (),
        "--tolerate": asked.tolerate or (),
        "--claim": (asked.claim,),
        "--image": (asked.image,),
        "--shm": (asked.shm,),
    }
    laws = {**LAWS, "--image": IMAGE_OF_PODS} if asked.target in IN_PODS else LAWS
    for option, law in laws.items():
        for value in given[option]:
            if not re.fullmatch(law.pattern, value):
                raise ConfigError(f"{option} {value!r}: {law.words}; give it as {option} {law.example}")
    keys = [one.partition("=")[0] for one in asked.node or ()]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"--node {key}: it is given {keys.count(key)} times, and a node has one value; give one")
    labels = ", ".join(
        f"{_yaml(key)}: {_yaml(value)}" for key, _, value in (n.partition("=") for n in asked.node or ())
    )
    taints = ", ".join(f"{{key: {_yaml(key)}, operator: Exists}}" for key in asked.tolerate or ())
    return {
        "selector": f"      nodeSelector: {{{labels}}}\n" if labels else "",
        "tolerations": f"      tolerations: [{taints}]\n" if taints else "",
        "rdma": str(asked.rdma),
        "shm": f", sizeLimit: {asked.shm}" if asked.shm else "",
    }


def _refuse_options_of_pods(asked: Asked) -> None:
    """Raise ConfigError for an option that has no effect on the file of another program."""
    given = {"--node": asked.node, "--tolerate": asked.tolerate, "--rdma": asked.rdma, "--shm": asked.shm}
    given["--claim"] = asked.claim != UNNAMED
    given["--image"] = asked.image != UNNAMED and asked.target is Target.torchrun
    for option, value in given.items():
        if value:
            takes = "kubernetes, jobset and slurm" if option == "--image" else "kubernetes and jobset"
            raise ConfigError(f"{option} has no effect with --print {asked.target}, only with {takes}; leave it out")


def _refuse_hosts(hosts: str, target: Target, config: RunConfig, where: Nodes) -> None:
    """Raise ConfigError for --hosts that no file starts."""
    from trivium.cli.hosts import host_counts

    _, most = host_counts(hosts, config.plan)
    if target is Target.torchrun:
        raise ConfigError(
            f"--hosts {hosts}: a file for torchrun waits for the same hosts at each attempt; start `trivium train "
            f"--hosts {hosts}` on each host instead"
        )
    if most != where.nodes:
        raise ConfigError(
            f"--hosts {hosts}: a layout of {config.plan.layout.world_size} ranks fills {where.nodes} nodes of "
            f"{config.machine}; MAX must be {where.nodes}"
        )


def _refuse_what_train_would(out: Path, given: Given, tokens: Path | None) -> None:
    """ConfigError, DataError or CheckpointError as `trivium train --dry-run` raises it, instead of on all the nodes; of
    tokens that only these have nothing is known."""
    from trivium.tokens.manifest import MANIFEST

    _, found = dry_run_lines(given)
    if found:
        raise ConfigError("\n".join(found))
    if ((tokens or out / "tokens") / MANIFEST).is_file():
        with suppress(MachineError):  # this machine only prints the file, so it may lack what the run needs
            would(out, given, tokens)
    else:
        say_aside(f"warning: {tokens or out / 'tokens'} has no tokens on this machine; the nodes must have them there")


def mounted(out: Path) -> Path:
    """Return the folder at which pods mount the shared volume: the first of the path. The rest of the path is a folder
    of the volume, so that runs with different paths do not collide."""
    return Path(*out.parts[:2])


def _refuse_what_no_pod_has(out: Path, preset: str | None, tokens: Path | None) -> None:
    """A pod has the image and the shared volume, and not the folder in which this is called."""
    if not out.is_absolute():
        raise ConfigError(
            f"--out {out} is relative, and in a pod it would lie beside the shared volume, and be gone with it; give "
            f"the full path of a folder on that volume, as --out {Path('/runs') / out.name}"
        )
    if out.parent == out.parent.parent:
        raise ConfigError(
            f"--out {out}: pods mount the shared volume at the first folder of the path, and the run is a folder "
            f"below it; give --out {Path('/runs') / (out.name or 'demo')}"
        )
    if mounted(out).name in IMAGE_FOLDERS:
        raise ConfigError(
            f"--out {out}: pods mount the shared volume at {mounted(out)}, where it would hide the image's own files; "
            f"give a folder elsewhere, as --out {Path('/runs') / out.name}"
        )
    given_file = preset is not None and preset not in preset_names() and not is_hub_name(preset)
    if preset is not None and given_file:
        _check_path("--preset", preset, out)
        for base in preset_files(preset)[:-1]:
            if not base.is_relative_to(shipped("")):
                _check_path(f"--preset {preset}, base:", base, out)
    if tokens is not None:
        _check_path("--tokens", tokens, out)


def _check_path(what: str, path: str | Path, out: Path, *, between: str = " ") -> None:
    """Raise ConfigError for a relative path of a file that pods read; warn of one outside the shared volume."""
    if not Path(path).is_absolute():
        raise ConfigError(
            f"{what}{between}{path} is relative, and no pod has the folder in which it is; put it on the shared "
            f"volume, and give its full path there, as {what}{between}{out.parent / Path(path).name}"
        )
    if not Path(path).is_relative_to(mounted(out)):
        say_aside(
            f"warning: {what}{between}{path} is outside {mounted(out)}, where pods have the shared volume; the image "
            f"must have it"
        )


def job_file(target: Target, config: RunConfig, machine: Machine | None, out: Path, more: Mapping[str, str]) -> str:
    """The text of a job file. machine: None is one host with cores enough. more: image, claim and arguments."""
    where = placed(config, machine)
    own_name = _name(out, target, where.nodes)
    values = {name: str(value) for name, value in _values(config, where, out, own_name, more).items()}
    if target in IN_PODS or where.nodes > 1:
        values["rendezvous"] = RENDEZVOUS.format(name=values["name"], seconds=values["host_seconds"])
    values["attempts"] = _filled(ATTEMPTS, values)
    is_elastic = bool(more.get("hosts"))
    values["start"] = _filled(HOSTS_OF_SLURM if is_elastic else RANKS_OF_SLURM, values)
    values["script"] = textwrap.indent(_filled(HOSTS_OF_POD if is_elastic else RANKS_OF_POD, values), IN_POD)
    values["service"] = "" if is_elastic else _filled(SERVICE, values) + "\n"
    text = _filled(FILES[target], values)
    return text if target is not Target.jobset else as_jobset(text, values["name"])


JOBSET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  network: {{enableDNSHostnames: true, subdomain: {name}}}
  replicatedJobs:
    - name: ranks
      replicas: 1
      template:
        spec:
"""


def as_jobset(text: str, name: str) -> str:
    """Return the file of an Indexed Job as that of a JobSet, which makes the service and names the pods itself."""
    title, _, rest = text.partition("\n")
    spec = rest.partition("kind: Job\n")[2].partition("\nspec:\n")[2]
    spec = spec.replace(f"      subdomain: {name}\n", "").replace(f"{name}-0.{name}", f"{name}-ranks-0-0.{name}")
    head = f"{title}\n# Written by `trivium launch --print jobset`. Before `kubectl apply -f`: set image and claim."
    return f"{head}\n{AGAIN}\n{JOBSET.format(name=name)}{textwrap.indent(spec, ' ' * 8)}"


def _filled(file: str, values: Mapping[str, str]) -> str:
    text = resources.files("trivium.cli").joinpath("job_files", file).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text).rstrip()


def placed(config: RunConfig, machine: Machine | None) -> Nodes:
    """Ranks fill nodes in order; ConfigError when they cannot, or when a tensor group would span two nodes."""
    layout = config.plan.layout
    world = layout.world_size
    if machine is None:
        return Nodes(1, world, has_gpus=False)
    owns_devices = machine.sharing == "exclusive"
    per_node = min(world, machine.devices_per_node) if owns_devices else world
    nodes = world // per_node
    if world % per_node:
        raise ConfigError(
            f"plan.layout: {world} ranks do not fill nodes of {per_node} devices (machine {machine.name}); choose a "
            f"layout of {nodes * per_node} or {(nodes + 1) * per_node} ranks"
        )
    if nodes > machine.nodes:
        raise ConfigError(
            f"plan.layout: {world} ranks need {nodes} nodes of {per_node} devices, and machine {machine.name} has "
            f"{machine.nodes}; choose a smaller layout or another machine"
        )
    found = problems(layout, per_node, tensor_unit=config.plan.tensor_unit)
    if found:
        raise ConfigError("\n".join(found).replace(", or pass --allow-tensor-across-nodes", ""))
    fills_nodes = owns_devices and per_node == machine.devices_per_node
    return Nodes(nodes, per_node, owns_devices and machine.generation != "cpu", fills_nodes)


def _values(config: RunConfig, where: Nodes, out: Path, name: str, more: Mapping[str, str]) -> dict[str, object]:
    training, is_elastic = config.training, bool(more.get("hosts"))
    grace = round(training.supervision.preemption_seconds) + MARGIN_SECONDS
    alone = where.nodes == 1
    rdma = int(more.get("rdma", "0"))
    limits = [f"nvidia.com/gpu: {where.per_node}"] if where.has_gpus else []
    limits += [f"rdma/ib: {rdma}"] if rdma else []
    resources = f"          resources: {{limits: {{{', '.join(limits)}}}}}\n" if limits else ""
    takes_nodes = where.fills_nodes and not where.has_gpus
    pyxis, inside = _container(more["image"], out)
    return {
        "title": f"{layout_text(config.plan.layout.model_dump())}: {where.nodes} x {where.per_node}",
        "name": name,
        "nodes": where.nodes,
        "per_node": where.per_node,
        "tasks": 1 if is_elastic else where.per_node,
        "devices": _slurm_devices(where, is_elastic=is_elastic),
        "resources": resources + (LOCKS_MEMORY if rdma else ""),
        "selector": more.get("selector", ""),
        "tolerations": more.get("tolerations", ""),
        "again": AGAIN,
        "labels": LABELLED if takes_nodes else "",
        "affinity": ALONE_ON_A_NODE if takes_nodes else "",
        "shm": more.get("shm", ""),
        "pyxis": pyxis,
        "inside": inside,
        "expects": EXPECTS if where.has_gpus else "",
        "expects_value": EXPECTS_IN_POD if where.has_gpus else "",
        "id_value": NODE_IN_POD if is_elastic else JOB_IN_POD,
        "subdomain": "" if is_elastic else f"      subdomain: {name}\n",
        # With 3, a host that is left out ends, and the others continue.
        "final_codes": "1, 2, 4, 5" if is_elastic else "1, 2, 3, 4, 5",
        "causes": "config, data or checkpoint" if is_elastic else "config, machine, data or checkpoint",
        "grace": grace,
        "restarts": training.restarts,
        "host_seconds": math.ceil(training.supervision.host_seconds),
        "out": shlex.quote(str(out)),
        "out_value": _yaml(out),
        "mount": _yaml(mounted(out)),
        "python": "python",
        "torchrun": "torchrun",
        "how": ON_ONE_HOST if alone else ON_HOSTS.format(where.nodes, shlex.quote(str(out))),
        "addresses": "" if alone else ADDRESSES,
        "rendezvous": "--standalone",
        "train": f"python -m {MODULE} {more['arguments']}",
        "finished": FINISHED,
        "stamp": STAMP,
        "module": f"{MODULE} {more['arguments']}",
        "image": _yaml(more["image"]),
        "claim": _yaml(more["claim"]),
    }


def _container(image: str, out: Path) -> tuple[str, str]:
    """Return the options of srun with which Pyxis runs an image, and the words with which Apptainer runs a file."""
    if image == UNNAMED:
        return "", ""
    mount = shlex.quote(str(out.absolute().parent))
    if image.endswith(".sif"):
        return "", f"apptainer exec --nv --bind {mount} {shlex.quote(image)} "
    return f"--container-image={shlex.quote(image)} --container-mounts={mount}:{mount} ", ""


def _slurm_devices(where: Nodes, *, is_elastic: bool) -> str:
    """Return the request of a job: a core or a GPU per rank, and the whole node with all its devices. By default
    Slurm would bind a rank to one core and give the job that core's share of the memory."""
    whole = ["#SBATCH --exclusive", "#SBATCH --mem=0"] if where.fills_nodes else []
    whole += ["#SBATCH --no-kill"] if is_elastic else []
    if not where.has_gpus:
        return "\n".join([f"#SBATCH --cpus-per-task={where.per_node if is_elastic else 1}", *whole])
    part = ["# The job uses some of a node's GPUs: add its share of cores and memory (--cpus-per-gpu, --mem-per-gpu)."]
    return "\n".join([f"#SBATCH --gpus-per-node={where.per_node}", *(whole or part)])


def _yaml(value: object) -> str:
    """A value as YAML reads it wherever it stands: JSON is YAML."""
    return json.dumps(str(value), ensure_ascii=False)


def _name(out: Path, target: Target, nodes: int) -> str:
    """Return a name that Kubernetes and Slurm accept, made from the name of the run directory.

    The webhook of JobSet allows 63 characters for the longest name of a pod, and Kubernetes for the host name of one.
    """
    longest = 63 - len(f"-ranks-0-{nodes - 1}-abcde") if target is Target.jobset else 52
    return re.sub(r"[^a-z0-9-]+", "-", f"trivium-{out.name}".lower())[:longest].strip("-")
