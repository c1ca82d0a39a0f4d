"""What the kernel gives one sandbox: namespaces, control groups, file tree, disk, network and system-call filter."""
