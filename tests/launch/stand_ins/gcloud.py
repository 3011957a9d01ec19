"""A stand-in for gcloud: a cloud in a folder, with workers that are folders in which commands run."""

import contextlib
import os
import signal
import sys
from pathlib import Path

from tool import FOLDER, Call, shared

WORKERS = int(os.environ.get("T5LIKE_STAND_IN_WORKERS", "2"))  # of a slice


def error(code: str, message: str) -> None:
  sys.exit(f"ERROR: (gcloud.compute.tpus) {code}: {message}")


def find(cloud: dict, name: str) -> dict:
  if name not in cloud:
    error("NOT_FOUND", f"Resource 'projects/p/locations/z/queuedResources/{name}' was not found")
  return cloud[name]


def create(call: Call) -> None:
  import shutil  # here and below, so that frequent calls without it start faster

  (name,) = call.arguments
  with shared("cloud.json", {}) as cloud:
    if name in cloud:
      error("ALREADY_EXISTS", f"Resource '{name}' already exists")
    count = int(call.flag("--node-count", "1"))
    prefix = call.flag("--node-prefix", name)
    nodes = [call.flag("--node-id")] if call.flag("--node-id") else [f"{prefix}-{i}" for i in range(count)]
    cloud[name] = {"state": "WAITING_FOR_RESOURCES", "nodes": {node: "READY" for node in nodes}}
  for node in nodes:
    for worker in range(WORKERS):
      home = FOLDER / "workers" / f"{node}-w-{worker}"
      shutil.rmtree(home, ignore_errors=True)
      home.mkdir(parents=True)


NEXT = {"WAITING_FOR_RESOURCES": "PROVISIONING", "PROVISIONING": "ACTIVE", "SUSPENDING": "SUSPENDED"}


def describe_queue(call: Call) -> None:
  """Prints the state of a request, which advances with every call."""
  (name,) = call.arguments
  with shared("cloud.json", {}) as cloud:
    pod = find(cloud, name)
    state = pod["state"]
    pod["state"] = os.environ.get("T5LIKE_STAND_IN_GRANT", "") or NEXT.get(state, state)
  if "failedData" in call.flag("--format"):
    print(os.environ.get("T5LIKE_STAND_IN_WHY", ""))
  else:
    print(state)


def describe_node(call: Call) -> None:
  (node,) = call.arguments
  with shared("cloud.json", {}) as cloud:
    states = {name: state for pod in cloud.values() for name, state in pod["nodes"].items()}
  if node not in states:
    error("NOT_FOUND", f"Resource 'projects/p/locations/z/nodes/{node}' was not found")
  addresses = ";".join(f"10.0.0.{worker}" for worker in range(WORKERS))
  print(addresses if "networkEndpoints" in call.flag("--format") else states[node])


def delete(call: Call) -> None:
  (name,) = call.arguments
  with shared("cloud.json", {}) as cloud:
    pod = find(cloud, name)
    if pod["state"] == "ACTIVE" and "--force" not in call.flags:
      error("FAILED_PRECONDITION", "the queued resource has nodes: use --force")
    del cloud[name]
  for pid in FOLDER.glob("workers/*/t5like-pod/pid"):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(int(pid.read_text()), signal.SIGKILL)


def reachable_workers(call: Call, name: str) -> list[tuple[int, str]]:
  """Returns number and name of each requested worker; unreachable ones have number 255."""
  with shared("cloud.json", {}) as cloud:
    pod = find(cloud, name)
  if pod["state"] != "ACTIVE" or "PREEMPTED" in pod["nodes"].values():
    sys.exit('ERROR: (gcloud.compute.tpus) This TPU has terminal state "PREEMPTED", so it cannot be used anymore.')
  unreachable = (FOLDER / "unreachable").read_text().split() if (FOLDER / "unreachable").exists() else []
  found = []
  for number, node in enumerate(pod["nodes"]):
    if call.flag("--node", "0") not in ("all", str(number)):
      continue
    if node in unreachable:  # like gcloud: a warning, not an error
      print(f"WARNING: Could not prepare all {len(pod['nodes'])} nodes, attempting the rest.", file=sys.stderr)
      continue
    for worker in range(WORKERS):
      if call.flag("--worker", "0") in ("all", str(worker)):
        found.append((worker, f"{node}-w-{worker}"))
  for worker, host in found:
    if host in unreachable:
      print(f"ssh: connect to host {host} port 22: Connection timed out", file=sys.stderr)
      print(f"##### Command execution on worker {worker} failed with exit status 255. Continuing.", file=sys.stderr)
  return [(worker, host) for worker, host in found if host not in unreachable] + [
    (255, host) for _, host in found if host in unreachable
  ]


def ssh(call: Call) -> None:
  import subprocess

  running, status = [], 0
  for worker, host in reachable_workers(call, call.arguments[0]):
    if worker == 255:
      status = 255
      continue
    home = FOLDER / "workers" / host
    env = {**os.environ, "HOME": str(home), "PATH": f"{FOLDER / 'bin_of_workers'}:{os.environ['PATH']}"}
    command = ["bash", "-c", call.flag("--command")]
    running.append(subprocess.Popen(command, cwd=home, env={**env, "T5LIKE_STAND_IN_HOST": host}))
  statuses = [process.wait() for process in running]
  sys.exit(next((s for s in statuses if s), status))


def scp(call: Call) -> None:
  import shutil

  *sources, target = call.arguments
  status = 0
  for worker, host in reachable_workers(call, target.rstrip(":")):
    status = 255 if worker == 255 else status
    for source in sources if worker != 255 else ():
      shutil.copytree(source, FOLDER / "workers" / host / Path(source).name, dirs_exist_ok=True)
  sys.exit(status)


if __name__ == "__main__":
  called = Call("gcloud", sys.argv[1:])
  queue = "compute tpus queued-resources"
  {
    f"{queue} create": create,
    f"alpha {queue} create": create,
    f"{queue} describe": describe_queue,
    f"{queue} delete": delete,
    f"{queue} ssh": ssh,
    f"{queue} scp": scp,
    "compute tpus tpu-vm describe": describe_node,
  }[called.name](called)
