"""Sessions with clients: connections, channels, the delivery of results, and the adoption of a spare."""
