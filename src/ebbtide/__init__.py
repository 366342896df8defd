"""Ebbtide lends a GPU fleet's unused hosts to Kubernetes clusters and takes them back within five minutes."""

__version__ = "0.1.0"
