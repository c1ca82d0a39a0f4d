"""The controller: expires, reconciles and rebuilds. Several may run; the one that holds the lease acts."""
