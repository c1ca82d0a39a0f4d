"""Sessions with clients: connections, channels, the delivery of results, adoption of a waiting agent."""
