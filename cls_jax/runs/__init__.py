"""The files of a run's folder. This package knows pytrees, not training."""
