"""`launch/gke`: manifests are valid for Kubernetes and JobSet and match xpk's slices; kubectl and xpk get only valid
flags, and their failures are reported."""

import base64
import copy
import json
import os
import re
import shlex
import shutil
import subprocess

import jsonschema
import pytest
import referencing
import yaml
from commands import (
  PROJECT,
  PROJECT_OPTIONS,
  REPOSITORY,
  STAND_INS,
  check_t5like_finds_the_project,
  files_in,
  make_project,
  put_on_path,
)

from t5like.parallel import multihost

SCHEMAS = STAND_INS.parent / "schemas"
SLICES = json.loads((STAND_INS.parent / "flags/xpk.json").read_text())["slices"]
TRAIN = ["--", "t5like", "train", "--gin.MODEL_DIR=gs://bucket/run"]
V5E = ["--image=img", "--accelerator=v5e", "--topology=4x4"]
GPU = ["--image=img", "--accelerator=nvidia-h100-80gb", "--nodes=4"]


@pytest.fixture(scope="module")
def schema():
  resources = []
  for name in ("kubernetes.json", "jobset.json"):
    resources.append((name, referencing.Resource.from_contents(json.loads((SCHEMAS / name).read_text()))))
  registry = referencing.Registry().with_resources(resources)
  return jsonschema.Draft202012Validator({"$ref": "jobset.json"}, registry=registry)


class Cluster:
  def __init__(self, folder):
    self.folder = folder
    self.here = make_project(folder / "the user's folder")
    put_on_path(folder / "bin", {name: [STAND_INS / f"{name}.py"] for name in ("kubectl", "xpk")})
    self.environment = {
      **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "T5LIKE_STAND_IN": str(folder),
      "T5LIKE_RETRY_SECONDS": "0",
    }  # fmt: skip

  def run(self, script, *words, status=0) -> str:
    done = subprocess.run(
      [REPOSITORY / "launch/gke" / script, *words], env=self.environment, text=True, timeout=300, cwd=self.here,
      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert not (self.folder / "refused.txt").exists(), (self.folder / "refused.txt").read_text()
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}"
    return done.stdout

  def fail(self, words, stderr, times=1):
    (self.folder / "failures.json").write_text(json.dumps([{"words": words, "stderr": stderr, "times": times}]))

  def calls(self) -> list[list[str]]:
    return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def cluster(tmp_path):
  return Cluster(tmp_path)


def parts(manifest: dict) -> tuple[dict, dict, dict, dict]:
  """Returns the replicated job, its Job, its Pod and its container."""
  (replicated,) = manifest["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  pod = job["template"]["spec"]
  return replicated, job, pod, pod["containers"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["v4-8", "v4-64", "v5litepod-16", "v5litepod-256", "v5p-32", "v6e-4", "v6e-8", "tpu7x-128"]
)
def test_a_slice_has_the_same_shape_as_in_xpk(cluster, schema, name):
  label, topology, hosts, chips = SLICES[name]
  words = ["--image=img", f"--accelerator={name.split('-')[0]}", f"--topology={topology}", "--slices=3", *TRAIN]
  manifest = yaml.safe_load(cluster.run("jobset.sh", "render", "demo", *words))
  schema.validate(manifest)
  replicated, job, pod, container = parts(manifest)
  assert (replicated["replicas"], job["parallelism"], job["completions"]) == (3, hosts, hosts)
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": label, "cloud.google.com/gke-tpu-topology": topology,
  }  # fmt: skip
  assert container["resources"]["limits"] == container["resources"]["requests"] == {"google.com/tpu": chips}


def test_the_schemas_reject_what_kubernetes_would(cluster, schema):
  manifest = yaml.safe_load(cluster.run("jobset.sh", "render", "demo", *V5E, *TRAIN))
  for path, value in {
    ("spec", "replicatedJobs", 0, "template", "spec", "parallelism"): "four",
    ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "nodeSelectors"): {},
    ("spec", "failurePolicy", "rules", 0, "action"): "GiveUp",
    ("spec", "maxRestarts"): 3,
  }.items():
    wrong = copy.deepcopy(manifest)
    place = wrong
    for key in path[:-1]:
      place = place[key]
    place[path[-1]] = value
    assert not schema.is_valid(wrong), path


def test_only_invalid_input_is_not_retried(cluster):
  manifest = yaml.safe_load(cluster.run("jobset.sh", "render", "demo", *V5E, "--max_restarts=7", *TRAIN))
  _, job, pod, container = parts(manifest)
  (rule,) = job["podFailurePolicy"]["rules"]
  assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
  (reaction,) = manifest["spec"]["failurePolicy"]["rules"]
  assert (reaction["action"], reaction["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
  # Kubernetes accepts a podFailurePolicy only with restartPolicy Never; process ids come from the indexes.
  assert (pod["restartPolicy"], job["backoffLimit"], job["completionMode"]) == ("Never", 0, "Indexed")
  assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 7
  assert container["args"][:2] == ["train", "--restarts=10"]


def test_gpu_nodes_find_each_other(cluster, schema, monkeypatch):
  manifest = yaml.safe_load(cluster.run("jobset.sh", "render", "demo", *GPU, "--spot", *TRAIN))
  schema.validate(manifest)
  replicated, job, pod, container = parts(manifest)
  assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
  assert job["parallelism"] == 4 and container["resources"]["limits"] == {"nvidia.com/gpu": 8}
  for variable in container["env"]:
    value = variable.get("value", "2")
    if "valueFrom" in variable:
      assert variable["valueFrom"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")
    monkeypatch.setenv(variable["name"], value)
  # <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>, which is the JobSet's name (JobSet's documentation).
  assert multihost.resolve_process() == multihost.ProcessConfig(f"demo-{replicated['name']}-0-0.demo:8476", 4, 2)


def test_arguments_are_passed_unchanged(cluster, schema):
  words = ["--gin.LENGTHS={'inputs': 512}", 'a "quoted" word', "back\\slash", "R&D @NAME@ $HOME", "é: #x"]
  manifest = yaml.safe_load(
    cluster.run("jobset.sh", "render", "demo", *V5E, "--reservation=r1", "--restarts=0", *TRAIN, *words)
  )
  schema.validate(manifest)
  _, _, pod, container = parts(manifest)
  assert container["args"] == ["train", "--gin.MODEL_DIR=gs://bucket/run", *words]
  assert pod["nodeSelector"]["cloud.google.com/reservation-name"] == "r1"


def test_submit_watch_and_delete(cluster, schema):
  cluster.run("jobset.sh", "submit", "demo", *V5E, "--namespace=research", *TRAIN)
  schema.validate(yaml.safe_load((cluster.folder / "manifest.yaml").read_text()))
  cluster.run("jobset.sh", "status", "demo", "--namespace=research")
  output = cluster.run("jobset.sh", "logs", "demo", "--namespace=research")
  assert "[pod/demo-slice-0-0-x/t5like] step 1" in output
  assert "STILL BILLED: the cluster" in cluster.run("jobset.sh", "delete", "demo", "--namespace=research")
  assert all("--namespace=research" in call for call in cluster.calls())
  assert [call[0] for call in cluster.calls()][:3] == ["apply", "get", "get"] and cluster.calls()[-1][0] == "delete"
  assert not (cluster.folder / "configmap.yaml").exists()  # nothing to send


PROJECT_COMMAND = ["--with=my words", "--", "t5like", "train", *PROJECT_OPTIONS]


@pytest.mark.slow
@pytest.mark.parametrize("machine", [V5E, GPU], ids=["tpu", "gpu"])
def test_the_users_files_are_found_in_all_pods(cluster, schema, tmp_path, machine):
  output = cluster.run("jobset.sh", "submit", "demo", *machine, *PROJECT_COMMAND)
  assert f"sending {len(PROJECT)} files of {cluster.here}" in output
  config_map = yaml.safe_load((cluster.folder / "configmap.yaml").read_text())
  manifest = yaml.safe_load((cluster.folder / "manifest.yaml").read_text())
  schema.validate(manifest)
  assert config_map.keys() == {"apiVersion", "kind", "metadata", "immutable", "binaryData"}
  assert (config_map["apiVersion"], config_map["kind"], config_map["immutable"]) == ("v1", "ConfigMap", True)
  _, _, pod, container = parts(manifest)
  (volume,) = [v for v in pod["volumes"] if "configMap" in v]
  assert volume["configMap"]["name"] == config_map["metadata"]["name"] and container["workingDir"] == "/root"
  for mount in container["volumeMounts"]:  # what the kubelet does
    if mount["name"] == volume["name"]:
      target = tmp_path / "pod" / mount["mountPath"][1:]
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes(base64.b64decode(config_map["binaryData"][mount["subPath"]], validate=True))
  assert files_in(tmp_path / "pod/root") == PROJECT
  if machine is V5E:
    check_t5like_finds_the_project(tmp_path / "pod/root")
  first, second = cluster.calls()
  assert first[0] == second[0] == "apply" and "--server-side" in first  # the files before the run that needs them
  cluster.run("jobset.sh", "delete", "demo")
  selector = "--selector=" + "=".join(*config_map["metadata"]["labels"].items())
  assert {"delete", "configmap", selector} <= set(cluster.calls()[-1])


def test_changed_files_need_a_new_run(cluster):
  """Kubernetes does not change a JobSet: a run never resumes with other files after a restart of its Pods."""

  def rendered():
    return list(yaml.safe_load_all(cluster.run("jobset.sh", "render", "demo", *V5E, *PROJECT_COMMAND)))

  first, again = rendered(), rendered()
  (cluster.here / "helper.py").write_text("ready = 'new'\n")
  changed = rendered()
  assert first == again and [document["kind"] for document in first] == ["ConfigMap", "JobSet"]
  assert changed[0]["metadata"]["name"] != first[0]["metadata"]["name"] and changed[1] != first[1]


def test_files_that_are_too_large_for_a_config_map_are_rejected(cluster):
  (cluster.here / "my words/large.bin").write_bytes(b"x" * (1 << 20))
  output = cluster.run("jobset.sh", "submit", "demo", *V5E, *PROJECT_COMMAND, status=2)
  assert "too large: 1,04" in output and "my words/large.bin (1,048,576)" in output and "--in_image" in output
  assert not (cluster.folder / "calls.jsonl").exists()
  cluster.run("jobset.sh", "submit", "demo", *V5E, "--in_image", *PROJECT_COMMAND[1:], "--gin_file=/in/the/image.gin")
  manifest = yaml.safe_load((cluster.folder / "manifest.yaml").read_text())
  assert not (cluster.folder / "configmap.yaml").exists() and "workingDir" not in parts(manifest)[3]
  (cluster.here / "a:b.gin").touch()
  assert "with a colon" in cluster.run("jobset.sh", "render", "demo", *V5E, *TRAIN, "--gin_file=a:b.gin", status=2)


def test_a_dry_run_changes_nothing(cluster):
  output = cluster.run("jobset.sh", "submit", "demo", *V5E, "--dry_run", *TRAIN)
  assert "kind: JobSet" in output and "+ kubectl apply --filename=- --namespace=default" in output
  cluster.run("jobset.sh", "logs", "demo", "--dry_run")
  assert not (cluster.folder / "calls.jsonl").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("message", "times", "status", "expected"),
  [
    ("The connection to the server 10.0.0.1 was refused", 2, 0, "demo created"),
    ("Unable to connect to the server: dial tcp: i/o timeout", 9, 1, "cannot reach the cluster"),
    ('error: no matches for kind "JobSet" in version', 9, 2, "JobSet is not installed on the cluster"),
    ("Error from server (Forbidden): jobsets is forbidden", 9, 2, "gcloud container clusters get-credentials"),
    ("error: exceeded quota", 9, 2, "kubectl failed"),
  ],
)
def test_failures_of_the_cluster(cluster, message, times, status, expected):
  cluster.fail("apply", message, times)
  assert expected in cluster.run("jobset.sh", "submit", "demo", *V5E, *TRAIN, status=status)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["sail", "demo"], "unknown step 'sail'"),
    (["render", "Demo", *V5E, *TRAIN], "invalid name of a run"),
    (["render", "demo", *V5E], "missing command after --"),
    (["render", "demo", *V5E[1:], *TRAIN], "--image is required"),
    (["render", "demo", "--image=i", "--accelerator=v9", *TRAIN], "unknown accelerator 'v9'"),
    (["render", "demo", *V5E[:2], *TRAIN], "invalid --topology: ''"),
    (["render", "demo", *V5E, "--slices=x", *TRAIN], "invalid --slices: x (expected a number)"),
    (["render", "demo", *V5E, "--slices=0", *TRAIN], "invalid --slices: 0 (expected 1 or more)"),
    (["render", "demo", *V5E, "--slice=2", *TRAIN], "unknown option --slice"),
    (["render", "demo", *V5E, "--", "t5like", "train", "--gin.MODEL_DIR=runs/x"], "would be lost with the Pod"),
    (["submit", "demo", *V5E, *TRAIN, "--gin_file=absent.gin"], "no gin file absent.gin"),
    (["submit", "demo", *V5E, *TRAIN, "--gin_file=../my.gin"], "../my.gin would not be found on the workers"),
    (["submit", "demo", *V5E, "--with=my words", "--in_image", *TRAIN], "--with and --in_image exclude each other"),
    (["submit", "demo", *V5E, "--workdir=here", *TRAIN], "invalid --workdir: here"),
  ],
)
def test_invalid_commands_are_rejected(cluster, words, message):
  assert message in cluster.run("jobset.sh", *words, status=2)
  assert not (cluster.folder / "calls.jsonl").exists()


XPK = ["--cluster=c", "--project=p", "--zone=us-west4-a", "--tpu-type=v5litepod-16", "--docker-image=img"]


def test_xpk_gets_valid_flags_and_a_quoted_command(cluster):
  words = ["--gin.LENGTHS={'inputs': 512}", "$HOME", 'a "b"']
  cluster.run("xpk.sh", "create", "demo", *XPK, "--num-slices=2", "--max-restarts=5", *TRAIN, *words)
  cluster.run("xpk.sh", "list", *XPK[:3])
  cluster.run("xpk.sh", "delete", "demo", *XPK[:3])
  create, listed, deleted = cluster.calls()
  assert {"--workload=demo", "--num-slices=2", "--max-restarts=5", "--restart-on-exit-codes=124"} <= set(create)
  assert "--max-restarts=100" not in create and "--workload=demo" in deleted and "list" in listed
  (command,) = [word.removeprefix("--command=") for word in create if word.startswith("--command=")]
  assert command.startswith("exec ")
  put_on_path(cluster.folder / "bin", {"t5like": ["printf", "%s\\n"]})
  out = subprocess.run(["bash", "-c", f"({command})"], env=cluster.environment, capture_output=True, text=True).stdout
  assert out.splitlines() == ["train", "--restarts=10", "--gin.MODEL_DIR=gs://bucket/run", *words]


def test_xpk_sends_a_folder_or_nothing(cluster):
  """Local files must be in the folder that xpk sends (its option --script-dir)."""
  command = ["--", "t5like", "train", *PROJECT_OPTIONS]
  output = cluster.run("xpk.sh", "create", "demo", *XPK, *command, status=2)
  assert "files that xpk does not send: helper.py,it's $HOME/deep.gin" in output and "--base-docker-image" in output
  based = [*XPK[:-1], "--base-docker-image=img"]
  assert "no gin file" in cluster.run("xpk.sh", "create", "demo", *based, "--script-dir=my words", *command, status=2)
  assert not (cluster.folder / "calls.jsonl").exists()
  cluster.run("xpk.sh", "create", "demo", *based, *command)
  cluster.run("xpk.sh", "create", "demo", *XPK, "--in_image", *command)
  assert len(cluster.calls()) == 2 and not any("--in_image" in call for call in cluster.calls())


@pytest.mark.slow  # needs the real xpk (pip install xpk), which the tests do not install
@pytest.mark.skipif(not shutil.which("xpk"), reason="xpk is not installed")
def test_the_real_xpk_renders_the_requested_manifest(cluster):
  (cluster.folder / "bin/xpk").unlink()
  words = [*XPK, "--num-slices=2", "--dry-run", "--skip-validation", *TRAIN]
  output = cluster.run("xpk.sh", "create", "demo", *words)
  manifest = yaml.safe_load(re.search(r"^apiVersion: jobset.*?(?=^\[XPK\])", output, re.M | re.S)[0])
  replicated, job, pod, container = parts(manifest)
  assert (replicated["replicas"], job["parallelism"], manifest["spec"]["failurePolicy"]["maxRestarts"]) == (2, 4, 100)
  assert "(exec t5like train --restarts=10 --gin.MODEL_DIR=gs://bucket/run)" in container["command"][-1]
  (rule,) = job["podFailurePolicy"]["rules"]
  assert {124, 143} <= set(rule["onExitCodes"]["values"]) and 2 not in rule["onExitCodes"]["values"]
  assert pod["terminationGracePeriodSeconds"] == 600


def test_the_dockerfile_is_consistent():
  lines = (REPOSITORY / "launch/Dockerfile").read_text().replace("\\\n", " ").splitlines()
  instructions = [shlex.split(line) for line in lines if line and not line.startswith("#")]
  ignored = (REPOSITORY / "launch/Dockerfile.dockerignore").read_text().splitlines()
  copied = {source for name, *sources, _ in instructions if name == "COPY" for source in sources}
  assert copied == {line[1:] for line in ignored if line.startswith("!")} and "*" in ignored
  assert all((REPOSITORY / source).exists() for source in copied)
  assert instructions[0][0] == "FROM" and instructions[0][1].startswith("python:3.1")
  assert instructions[-1] == ["ENTRYPOINT", "[tini,", "--,", "t5like]"]  # signals reach the trainer
  extras = re.findall(r'"(\w+)": \[', (REPOSITORY / "setup.py").read_text())
  assert {"tpu", "cuda"} <= set(extras) and ["ARG", "EXTRA=tpu"] in instructions
