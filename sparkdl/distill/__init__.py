"""Distillation: a student learns what teachers answer.

Teachers are modules, saved models, columns, or servers of ``sparkdl serve`` that come and go.
"""

from sparkdl.distill.distiller import Cost, Distiller
from sparkdl.distill.hidden import FeatureMatching, PatientKD
from sparkdl.distill.losses import KD, DistillLoss, LogitMatching
from sparkdl.distill.service import Service
from sparkdl.distill.teachers import SoftLabels, Teacher

__all__ = [
    "KD",
    "Cost",
    "DistillLoss",
    "Distiller",
    "FeatureMatching",
    "LogitMatching",
    "PatientKD",
    "Service",
    "SoftLabels",
    "Teacher",
]
