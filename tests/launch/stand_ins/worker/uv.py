"""A stand-in for uv on a worker, which installs the trainer next to this file as `t5like`."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tool import Call

call = Call("uv", sys.argv[1:])
if call.name == "venv":
  Path("venv/bin").mkdir(parents=True, exist_ok=True)
elif call.name == "pip install":
  package = call.arguments[-1]
  assert package.startswith("t5like[tpu] @ "), package
  if package.split("file://")[-1].startswith("/"):
    assert Path(package.split("file://")[-1]).is_file(), package
  Path("venv/packages.json").write_text(json.dumps([package.split("/")[-1], call.flag("--exclude-newer")]))
  trainer = Path("venv/bin/t5like")
  trainer.unlink(missing_ok=True)
  trainer.symlink_to(Path(__file__).with_name("trainer"))
elif call.name == "pip freeze":
  print(*json.loads(Path("venv/packages.json").read_text()), sep="\n")
