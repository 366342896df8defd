"""Kubernetes as Ebbtide meets it: the programs of a control plane, and control planes on this machine.

programs       which programs, in which versions, and how each is built
places         where programs are looked for
install        getting those that are missing: release files, or Go
controlplane   a control plane of one's own, started and stopped with this process
"""
