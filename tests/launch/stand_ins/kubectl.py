"""A stand-in for kubectl: stores the applied manifest and prints what a cluster would."""

import sys

from tool import FOLDER, Call

if __name__ == "__main__":
  call = Call("kubectl", sys.argv[1:])
  if call.name == "apply":
    assert call.flag("--filename") == "-"
    manifest = sys.stdin.read()
    kind = "configmap" if "kind: ConfigMap" in manifest else "manifest"
    (FOLDER / f"{kind}.yaml").write_text(manifest)
    print("jobset.jobset.x-k8s.io/demo created")
  elif call.name == "logs" and "completion-index=0" in call.flag("--selector"):
    print("[pod/demo-slice-0-0-x/t5like] step 1")
  elif call.name == "logs":
    print("[pod/demo-slice-1-3-x/t5like] step 1\n[pod/demo-slice-1-3-x/t5like] error: the moon is full")
  elif call.name == "delete":
    print('jobset.jobset.x-k8s.io "demo" deleted')
  else:
    print("demo   0   1m")
