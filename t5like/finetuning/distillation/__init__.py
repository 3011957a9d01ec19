"""Distillation: a student that learns from a frozen teacher, in addition to its own targets.

`Distillation` has the settings, `WithTeacher` is the model of a train step: a student and its teacher. Checkpoints hold
the student only; see runs/teachers.py for where the teacher comes from.
"""

from t5like.finetuning.distillation.settings import Distillation
from t5like.finetuning.distillation.with_teacher import LEARNED, TEACHER, WithTeacher

__all__ = ["LEARNED", "TEACHER", "Distillation", "WithTeacher"]
