"""Looking at a cluster before Ebbtide works in it. Nothing is written; one call is a dry run."""

from ebbtide.kube.doctor.examine import examine
from ebbtide.kube.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict", "examine"]
