"""The driver for clusters with a Kubernetes API server.

`driver` has the seam's methods; `announcing`, `telling` and `removal` the three parts of a drain; `nodes`,
`pods`, `events`, `budgets`, `attachments` and `tokens` what objects look like. docs/kubernetes.md shows what
users see of it.
"""
