"""What the cluster provides: probes of nodes and network, capacity, pre-pulled images, and the doctor's checks."""
