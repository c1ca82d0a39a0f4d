"""The controller: expires, reconciles and rebuilds; many may run, one acts."""
