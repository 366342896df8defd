"""Kubernetes as Ebbtide meets it: speaking to clusters, and control planes on this machine.

programs       which programs, in which versions, and how each is built
places         where programs are looked for
install        getting those that are missing: release files, or Go
controlplane   a control plane of one's own, started and stopped with this process
client, watch  how we speak to any cluster's API server, and follow what happens there
"""
