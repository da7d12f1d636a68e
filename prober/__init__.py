"""From hosts to an Inventory: ask every host once, read the answers, find clusters, audit."""
