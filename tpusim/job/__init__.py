"""A kernel file from its path to an outcome: run, checked against its reference, with its exit status."""

from tpusim.job.job import Job, Outcome, run_job, run_loaded
from tpusim.job.status import Status

__all__ = ["Job", "Outcome", "Status", "run_job", "run_loaded"]
