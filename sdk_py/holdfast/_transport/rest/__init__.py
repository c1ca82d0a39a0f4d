"""REST requests without sockets: answers and what they mean, HTTP/1.1 for the blocking API, and when a request is sent again."""
