"""A worker that holds a claim until it is killed: `python claim_process.py FOLDER NAME`."""

import sys
import time
from pathlib import Path

from t5like.ablations.sweep.claims import Claims

claim = Claims(Path(sys.argv[1]), heartbeat=0.05).take(sys.argv[2])
print("taken" if claim else "refused", flush=True)
if claim:
  with claim:
    time.sleep(600)
