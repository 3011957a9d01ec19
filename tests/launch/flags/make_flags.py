"""Writes the flags of the real tools, against which the stand-ins check calls.

  python make_flags.py uv /path/to/uv             # also: kubectl /path/to/kubectl, xpk /path/to/xpk
  python make_flags.py slurm /usr/share/man/man1  # its manual pages srun.1.gz, sbatch.1.gz, ...

xpk's list includes its table of slices (`slices`), against which the manifests are checked. gcloud.json was written
manually from the synopses of the pages that it lists: gcloud cannot be installed from a package index.
"""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

COMMANDS = {
  "uv": {"venv": [0, 1], "pip install": [0, 99], "pip freeze": [0, 0]},
  "kubectl": {"apply": [0, 0], "get": [1, 99], "logs": [0, 2], "delete": [0, 99], "wait": [1, 99]},
  "xpk": {"workload create": [0, 0], "workload list": [0, 0], "workload delete": [0, 0]},
  "slurm": {"srun": [0, 999], "sbatch": [1, 999], "scancel": [0, 99], "scontrol": [1, 99]},
}
# Runs in xpk's interpreter.
SLICES = """
import json
from xpk.core.system_characteristics import UserFacingNameToSystemCharacteristics as table
print(json.dumps({name: [c.gke_accelerator, c.topology, c.vms_per_slice, c.chips_per_vm]
  for name, c in table.items() if c.accelerator_type.name == "TPU"
  and name.rsplit("-", 1)[1] in ("4", "8", "16", "32", "64", "128", "256", "512")}))
"""


def run(*words: str) -> str:
  return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def flags_of(tool: str, path: str, command: str) -> tuple[list[str], list[str]]:
  """Returns all flags of a command, and those whose value may be the next word."""
  if tool == "slurm":
    text = gzip.decompress((Path(path) / f"{command}.1.gz").read_bytes()).decode()
    text = re.sub(r"\\f[BIRP]", "", text).replace("\\-", "-")
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))), []
  text = run(path, *command.split(), "--help")
  if tool == "kubectl":
    found = re.findall(r"^ +(?:(-\w), )?(--[a-z-]+)=([^:]*):", text, re.M)
    values = [flag for short, long, default in found if default not in ("true", "false") for flag in (short, long)]
    return sorted({flag for short, long, _ in found for flag in (short, long)} - {""}), sorted({*values} - {""})
  found = re.findall(r"^ +(?:-\w+(?: [A-Z_]+)?, )?(--[a-z-]+)(?: (<|[A-Z{]))?", text, re.M)
  flags = sorted({flag for flag, _ in found} | set(re.findall(r"[\[(|] ?(--[a-z-]+)", text)))
  return flags, sorted({flag for flag, value in found if value} | set(re.findall(r"(--[a-z-]+) [A-Z{]", text)))


def version_of(tool: str, path: str) -> str:
  if tool == "slurm":
    page = gzip.decompress((Path(path) / "srun.1.gz").read_bytes()).decode()
    return "manual pages, " + re.search(r"\.TH .*", page)[0].replace('"', "")
  words = {"uv": ["--version"], "kubectl": ["version", "--client", "--short"], "xpk": ["version"]}[tool]
  return re.search(r"v?\d+\.\d+\.\d+", run(path, *words))[0]


def main(tool: str, path: str) -> None:
  everywhere = []
  if tool == "kubectl":
    everywhere = sorted(set(re.findall(r"(--[a-z-]+)=", run(path, "options"))) | {"-n", "-s"})
  listed = {"tool": f"{tool} {version_of(tool, path)}", "read": f"by make_flags.py {tool}", "everywhere": everywhere}
  lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in listed.items()]
  if tool == "xpk":
    slices = json.loads(run(str(Path(path).with_name("python")), "-c", SLICES))
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(slices.items()))
    lines.append(f'  "slices": {{\n{rows}\n  }}')
  rows = []
  for command, arguments in COMMANDS[tool].items():
    flags, values = flags_of(tool, path, command)
    row = {"flags": flags, "values": values, "required": [], "arguments": arguments}
    rows.append(
      f"    {json.dumps(command)}: {{\n"
      + ",\n".join(f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in row.items())
      + "\n    }"
    )
  lines.append('  "commands": {\n' + ",\n".join(rows) + "\n  }")
  Path(__file__).with_name(f"{tool}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
  main(*sys.argv[1:])
