"""Devices and processes: the mesh, the distributed runtime, and preemption."""
