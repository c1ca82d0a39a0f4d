"""REST requests without sockets: answers and what they mean, and when a request is sent again."""
