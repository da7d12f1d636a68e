"""The inventory of some clusters, on which an island is planned like any other job."""

from __future__ import annotations

from collections.abc import Collection

from holmes_core.records.inventory import Inventory


class IslandInventory(Inventory):
    """The clusters of one island. Even a single one encrypts, since the tunnel leads to other islands."""

    @property
    def encrypts(self) -> bool:
        """True if traffic between islands goes through a tunnel."""
        return self.security.between_clusters == "wireguard"


def only_clusters(inventory: Inventory, names: Collection[str]) -> IslandInventory:
    """Return the inventory with only these clusters, their hosts, and the networks that join them.

    Several clusters keep the links between all clusters, since pairs that were not measured count as the worst of them.
    """
    clusters = tuple(cluster for cluster in inventory.clusters if cluster.name in names)
    kept = {host for cluster in clusters for host in cluster.hosts}
    shared = inventory.shared
    if shared is not None:
        shared = shared.model_copy(update={"ports": tuple(port for port in shared.ports if port.host in kept)})
    return IslandInventory.model_construct(
        **{
            **dict(inventory),
            "hosts": tuple(host for host in inventory.hosts if host.name in kept),
            "clusters": clusters,
            "shared": shared,
            "links": tuple(
                link
                for link in inventory.links
                if kept.issuperset(link.hosts) or (len(clusters) > 1 and link.kind == "between")
            ),
            "trunks": tuple(trunk for trunk in inventory.trunks if set(trunk.clusters) <= set(names)),
            "nvlink_domains": tuple(each for each in inventory.nvlink_domains if kept.issuperset(each.hosts)),
        }
    )


def training_clusters(inventory: Inventory) -> list[str]:
    """Return the clusters without those whose hosts train nothing, such as a tunnel's hub with `gpus: []`."""
    idle = {host.name for host in inventory.hosts if host.gpus_stated == ()}
    return [cluster.name for cluster in inventory.clusters if not idle.issuperset(cluster.hosts)]
