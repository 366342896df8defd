"""An example for each command, shown below its help and in docs/cli.md."""

from __future__ import annotations

import typer

EXAMPLES = {
    "up": "ebbtide up --fleet fleet.yaml --port 8080",
    "serve": "ebbtide serve --database postgresql://ebbtide@db/ebbtide --port 8080",
    "worker": "ebbtide worker --database postgresql://ebbtide@db/ebbtide --fleet fleet.yaml",
    "clusters list": "ebbtide clusters list --output wide",
    "clusters get": "ebbtide clusters get reef --output yaml",
    "clusters create": "ebbtide clusters create reef --gpu-type H100_SXM --preemptible-gpus 16 --wait",
    "clusters update": "ebbtide clusters update reef --preemptible-gpus 32",
    "clusters delete": "ebbtide clusters delete reef --yes --wait",
    "clusters import": "ebbtide clusters import reef --kubeconfig ebbtide.kubeconfig --standard-selector "
    "pool=gpu --region local-1 --gpu-type H100_SXM --preemptible-gpus 16 --wait",
    "clusters renew-import": "ebbtide clusters renew-import reef --kubeconfig ebbtide.kubeconfig",
    "clusters events": "ebbtide clusters events reef --follow --json",
    "clusters credentials": "ebbtide clusters credentials reef --file reef.kubeconfig",
    "clusters set": "ebbtide clusters set reef --warn-first 60 --placement explicit",
    "clusters receipts": "ebbtide clusters receipts reef --last 5",
    "clusters receipt": "ebbtide clusters receipt gpu-preemptible-dp-km444-psdhx --json",
    "capacity": "ebbtide capacity --gpu-type H100_SXM",
    "capacity history": "ebbtide capacity history --cluster reef",
    "watch": "ebbtide watch reef --last 20",
    "storage list": "ebbtide storage list",
    "storage get": "ebbtide storage get data",
    "storage create": "ebbtide storage create data --size-tib 2 --region local-1 --wait",
    "storage grow": "ebbtide storage grow data --size-tib 4",
    "storage delete": "ebbtide storage delete data --yes",
    "remediations list": "ebbtide remediations list reef",
    "remediations create": "ebbtide remediations create reef gpu-dp-km444-psdhx --mode REBOOT_VM",
    "remediations get": "ebbtide remediations get 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "remediations approve": "ebbtide remediations approve 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "remediations reject": "ebbtide remediations reject 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "remediations cancel": "ebbtide remediations cancel 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "fleet pools": "ebbtide fleet pools --output wide",
    "fleet hosts": "ebbtide fleet hosts --pool h100",
    "fleet hosts show": "ebbtide fleet hosts show h100-b1-003",
    "fleet hosts add": "ebbtide fleet hosts add gpu-a-17 gpu-a-18 --pool h100 --block b2",
    "fleet hosts cordon": 'ebbtide fleet hosts cordon h100-b1-003 --reason "fan 2 is loud"',
    "fleet hosts uncordon": "ebbtide fleet hosts uncordon h100-b1-003",
    "fleet hosts drain": 'ebbtide fleet hosts drain h100-b1-003 --reason "new fans" --until 2h --wait',
    "fleet hosts return": "ebbtide fleet hosts return h100-b1-003",
    "fleet hosts remove": "ebbtide fleet hosts remove gpu-a-17",
    "fleet settings": "ebbtide fleet settings --all",
    "fleet settings set": "ebbtide fleet settings set cooldown_s 300",
    "fleet settings reset": "ebbtide fleet settings reset cooldown_s",
    "fleet node": "ebbtide fleet node gpu-preemptible-dp-km444-psdhx",
    "fleet regions": "ebbtide fleet regions",
    "fleet nodes": "ebbtide fleet nodes --cluster reef",
    "fleet reclaim": 'ebbtide fleet reclaim --pool h100 --hosts 2 --reason "maintenance in rack 3"',
    "fleet cordon": 'ebbtide fleet cordon h100-b1-003 --reason "fan 2 is loud"',
    "fleet uncordon": "ebbtide fleet uncordon h100-b1-003",
    "fleet why": "ebbtide fleet why reef",
    "fleet ownership": "ebbtide fleet ownership",
    "fleet apply": "ebbtide fleet apply fleet.yaml",
    "fleet sync": "ebbtide fleet sync --pool h100 --dry-run -- ./from-netbox --site b2",
    "fleet wipes": "ebbtide fleet wipes --host h100-b1-003",
    "fleet check": "ebbtide fleet check fleet.yaml",
    "fleet example": "ebbtide fleet example > fleet.yaml",
    "fleet claims": "ebbtide fleet claims --pool h100",
    "fleet claim": 'ebbtide fleet claim --pool h100 --hosts 2 --ref order-4711 --for "web shop" --wait',
    "fleet return": "ebbtide fleet return order-4711 --host h100-b1-003",
    "usage": "ebbtide usage --from 2026-01-01T00:00:00Z --by node",
    "organizations list": "ebbtide organizations list",
    "organizations create": 'ebbtide organizations create "Acme Corporation"',
    "organizations rename": 'ebbtide organizations rename "Acme Corporation" Acme',
    "organizations disable": "ebbtide organizations disable Acme",
    "organizations enable": "ebbtide organizations enable Acme",
    "projects list": "ebbtide projects list",
    "projects create": 'ebbtide projects create lab --name "The Lab" --weight 2',
    "projects set": "ebbtide projects set lab --standard-gpus-limit 64 --preemptible-gpus-limit none",
    "keys list": "ebbtide keys list",
    "keys create": "ebbtide keys create --project lab --name ci --expires-in-days 90",
    "keys rotate": "ebbtide keys rotate 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1 --overlap 86400",
    "keys revoke": "ebbtide keys revoke 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "keys first": "ebbtide keys first --database postgresql://ebbtide@db/ebbtide",
    "audit": "ebbtide audit --limit 20 --output wide",
    "webhooks list": "ebbtide webhooks list",
    "webhooks create": "ebbtide webhooks create https://example.com/hooks --reason TogetherPreempted",
    "webhooks delete": "ebbtide webhooks delete 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1",
    "webhooks deliveries": "ebbtide webhooks deliveries 0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1 --limit 20",
    "secrets new-key": "ebbtide secrets new-key",
    "secrets reseal": "ebbtide secrets reseal --database postgresql://ebbtide@db/ebbtide",
    "doctor": "ebbtide doctor --kubeconfig ebbtide.kubeconfig --fleet fleet.yaml",
    "playground pods": "ebbtide playground pods reef",
    "playground run": "ebbtide playground run reef trainer --count 2 --behaviour dawdles --exits-after 20",
    "playground delete-node": "ebbtide playground delete-node reef gpu-preemptible-dp-k2b7x-9qz4m",
    "playground vanish": "ebbtide playground vanish h100-b1-003",
    "kube install": "ebbtide kube install --only kubectl,kwok",
    "kube status": "ebbtide kube status",
    "kube manifests": "ebbtide kube manifests --placement explicit --guard > ebbtide-rights.yaml",
}


def attach(app: typer.Typer, path: str = "") -> None:
    """Give every command of the tree its example."""
    for one in app.registered_commands:
        example = EXAMPLES.get(f"{path}{one.name}")
        if example:
            one.epilog = f"Example: {example}"
    for group in app.registered_groups:
        if group.typer_instance:
            own, example = group.typer_instance.registered_callback, EXAMPLES.get(f"{path}{group.name}")
            if own and example:
                own.epilog = f"Example: {example}"
            attach(group.typer_instance, f"{path}{group.name} ")
