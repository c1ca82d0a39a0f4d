"""The Kubernetes API server: requests, and LIST with WATCH."""
