"""The documentation as a site: its own pages, and those of the repository that the site shows too (``make docs``)."""
