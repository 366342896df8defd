"""Provider `kwok`: real Kubernetes control planes on this machine, and nodes with no machine behind them.

planes      the control planes: each in its folder, started in the background, watched, removed
plane       one of them: its servers, its ways in, its kwok
player      the kwok process, which plays the kubelets of machines that are on
machines    machines as they are written down
kubelet     what a kubelet says to its API server that kwok does not say for it
provider    all of it behind `providers.base.Provider`

kwok plays a node while the Node has the label LABEL_ON. Taking the label away is not enough to switch a
machine off: what kwok had already planned for its pods it still does. So a machine with live pods is switched
off by killing kwok, whose successor starts only when the label is gone. All delays in `stages.yaml` are
counted from instants that the API server has, so nobody else notices.
"""

from ebbtide.providers.kwok.provider import KwokProvider

__all__ = ["KwokProvider"]
