"""An API server and a kubelet that are small enough to read: real sockets, real agents, faults on request."""
